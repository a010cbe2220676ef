/* A libnvidia-ml.so.1 that answers from a table: the file named by FAKE_NVML, one `key value` a line.
 *
 * `!15` as a value is that error; a key that is missing is "not supported" (3). Keys of a device are `0.name`, of a MIG
 * instance `0.1.name`. `hang` sleeps for ever, `crash` ends the process.
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

#ifndef OLD
ret nvmlSystemGetCudaDriverVersion_v2(int *out) { return number("cuda", (uint *)out); }
ret nvmlDeviceGetMigMode(void *handle, uint *now, uint *later) { *later = 0; return number(key(handle, "mig"), now); }
ret nvmlDeviceGetMaxMigDeviceCount(void *handle, uint *out) { return number(key(handle, "instances"), out); }

ret nvmlDeviceGetMigDeviceHandleByIndex(void *parent, uint index, void **out) {
    ret r;
    *out = (void *)((long)parent | (long)(index + 1) << 8);
    r = look(key(*out, "name"));
    return r == 3 ? 6 : r;
}
#endif
