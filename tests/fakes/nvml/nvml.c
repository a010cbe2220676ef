/* A libnvidia-ml.so.1 that answers from a table: the file named by FAKE_NVML, one `key value` a line.
 *
 * `!15` as a value is that error; a key that is missing is "not supported" (3). Keys of a device are `0.name`, of a MIG
 * instance `0.1.name`, of a link `0.link3`, of a pair `0.way1`. `hang` sleeps for ever, `crash` ends the process.
 * -DOLD leaves out what drivers before 470 did not have, -DABSENT is a library of which nothing answers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int uint;
typedef int ret;

static char found[512];

/* 0 and the value in `found`, or the error. */
static ret look(const char *key) {
    FILE *table = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "/nonexistent", "r");
    char row[512];
    size_t length = strlen(key);
    ret result = 3;
    if (!table) return 9;
    while (fgets(row, sizeof row, table)) {
        if (strncmp(row, key, length) || row[length] != ' ') continue;
        row[strcspn(row, "\n")] = 0;
        strcpy(found, row + length + 1);
        result = found[0] == '!' ? atoi(found + 1) : 0;
        break;
    }
    fclose(table);
    if (!result && !strcmp(found, "hang")) for (;;) sleep(1000);
    if (!result && !strcmp(found, "crash")) abort();
    return result;
}

static ret text(const char *key, char *out, uint size) {
    ret result = look(key);
    if (!result) snprintf(out, size, "%s", found);
    return result;
}

static ret number(const char *key, uint *out) {
    ret result = look(key);
    if (!result) *out = (uint)strtoul(found, NULL, 10);
    return result;
}

/* A handle is the device's number and its instance's, each plus one. */
static const char *key(void *handle, const char *what) {
    static char made[64];
    long both = (long)handle;
    if (both >> 8) snprintf(made, sizeof made, "%ld.%ld.%s", (both & 255) - 1, (both >> 8) - 1, what);
    else snprintf(made, sizeof made, "%ld.%s", both - 1, what);
    return made;
}

static const char *numbered(void *handle, const char *what, long n) {
    char whole[32];
    snprintf(whole, sizeof whole, "%s%ld", what, n);
    return key(handle, whole);
}

ret nvmlInitWithFlags(uint flags) { ret r; (void)flags; r = look("start"); return r == 3 ? 0 : r; }
ret nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(ret code) { (void)code; return "fake"; }
ret nvmlSystemGetDriverVersion(char *out, uint size) { return text("driver", out, size); }
ret nvmlSystemGetNVMLVersion(char *out, uint size) { return text("driver", out, size); }
ret nvmlDeviceGetCount_v2(uint *out) { return number("count", out); }

ret nvmlDeviceGetHandleByIndex_v2(uint index, void **out) {
    ret r;
    *out = (void *)(long)(index + 1);
    r = look(key(*out, "handle"));
    return r == 3 ? 0 : r;
}

ret nvmlDeviceGetName(void *handle, char *out, uint size) { return text(key(handle, "name"), out, size); }
ret nvmlDeviceGetUUID(void *handle, char *out, uint size) { return text(key(handle, "uuid"), out, size); }

ret nvmlDeviceGetMemoryInfo(void *handle, unsigned long long out[3]) {
    ret r = look(key(handle, "memory"));
    if (!r) out[0] = strtoull(found, NULL, 10), out[1] = out[0], out[2] = 0;
    return r;
}

ret nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    ret r = look(key(handle, "capability"));
    if (!r) sscanf(found, "%d.%d", major, minor);
    return r;
}

ret nvmlDeviceGetEccMode(void *handle, uint *now, uint *later) { *later = 0; return number(key(handle, "ecc"), now); }

typedef struct { char legacy[16]; uint domain, bus, device, id, subsystem; char address[32]; } pci;

static ret address(const char *at, pci *out) {
    ret r = look(at);
    memset(out, 0, sizeof *out);
    if (!r) snprintf(out->address, sizeof out->address, "%s", found);
    return r;
}

ret nvmlDeviceGetPciInfo_v3(void *handle, pci *out) { return address(key(handle, "bus"), out); }

/* `0.link3 00000000:3b:00.0`, `0.link3 switch`, `0.link3 off`; one that is missing is beyond the last. */
ret nvmlDeviceGetNvLinkState(void *handle, uint link, uint *active) {
    ret r = look(numbered(handle, "link", link));
    if (!r) *active = strcmp(found, "off") != 0;
    return r;
}

ret nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, uint link, pci *out) { return address(numbered(handle, "link", link), out); }

ret nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, uint *level) {
    return number(numbered(one, "way", (long)other - 1), level);
}

#ifndef OLD
ret nvmlSystemGetCudaDriverVersion_v2(int *out) { return number("cuda", (uint *)out); }
ret nvmlDeviceGetNumGpuCores(void *handle, uint *out) { return number(key(handle, "cores"), out); }
ret nvmlDeviceGetMigMode(void *handle, uint *now, uint *later) { *later = 0; return number(key(handle, "mig"), now); }
ret nvmlDeviceGetMaxMigDeviceCount(void *handle, uint *out) { return number(key(handle, "instances"), out); }

ret nvmlDeviceGetMigDeviceHandleByIndex(void *parent, uint index, void **out) {
    ret r;
    *out = (void *)((long)parent | (long)(index + 1) << 8);
    r = look(key(*out, "name"));
    return r == 3 ? 6 : r;
}

typedef struct { uint units, copy, decoder, encoder, jpeg, ofa, slices, parts; unsigned long long megabytes; } attributes;

ret nvmlDeviceGetAttributes_v2(void *handle, attributes *out) {
    ret r = look(key(handle, "attributes"));
    memset(out, 0, sizeof *out);
    if (!r) sscanf(found, "%u %u %u %llu", &out->units, &out->slices, &out->parts, &out->megabytes);
    return r;
}

ret nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, uint link, uint *type) {
    ret r = look(numbered(handle, "link", link));
    if (!r) *type = strcmp(found, "switch") ? 0 : 2;
    return r;
}
#endif
