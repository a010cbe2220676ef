"""Merge a site's template into the manifest of a job: a part of a Job, as YAML or JSON. Pure.

As in a strategic merge patch, maps are merged, and lists are appended, whose elements are the same if their `name` is (of mounts, their
`mountPath`). A template adds to the manifest. It can change only what does not decide whether the run is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro_env.oci.paths import is_below
from repro_env.schema.errors import UsageError

_POD = "spec.template.spec"
_CHANGEABLE = {
    "spec.ttlSecondsAfterFinished",
    f"{_POD}.activeDeadlineSeconds",
    f"{_POD}.automountServiceAccountToken",
    f"{_POD}.enableServiceLinks",
    f"{_POD}.securityContext.fsGroupChangePolicy",
    f"{_POD}.securityContext.seccompProfile.type",
    f"{_POD}.terminationGracePeriodSeconds",
}
"""Values of the manifest that a template may replace."""
_DECIDED = {
    f"spec.{name}" for name in ("completions", "completionMode", "manualSelector", "parallelism", "podFailurePolicy", "selector")
}
"""What a template may not add, because it would change how often the command runs."""
_KEYS = ("apiVersion", "kind", "metadata", "spec")


def parse(text: str) -> dict[str, Any]:
    """Parse a template; an empty text is an empty one. Raises `UsageError`."""
    import yaml  # slow to import

    hint = "give a part of a Job; what belongs to its pods is below spec.template.spec"
    try:
        content = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        what = f"this file is not YAML: {' '.join(str(error).split())}"
        raise UsageError(what, where="--job-template", hint=hint) from None
    unknown = [str(key) for key in content if key not in _KEYS] if isinstance(content, dict) else ["a list or a text"]
    if unknown:
        raise UsageError(f"this file is not a part of a Job: it has {unknown[0]} at the top", where="--job-template", hint=hint)
    return dict(content)


def merge(manifest: Mapping[str, Any], template: Mapping[str, Any], protected: Sequence[str]) -> dict[str, Any]:
    """Return a manifest with a template merged into it. `protected`: directories that no mount may hide. Raises `UsageError`."""
    merged: dict[str, Any] = _merge(manifest, template, "")
    for container, own in zip(_containers(merged), _containers(manifest), strict=False):
        paths = [mount["mountPath"] for mount in own["volumeMounts"]]
        for mount in container["volumeMounts"][len(paths) :]:
            path = str(mount.get("mountPath", "")).rstrip("/")
            if is_below(path, *protected) or any(is_below(other, path) for other in (*paths, *protected)):
                raise _refused(f"mount anything at {path}")
    return merged


def _containers(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The containers of a manifest, ours first."""
    pod = manifest["spec"]["template"]["spec"]
    return [pod["initContainers"][0], pod["containers"][0]]


def _merge(own: Any, site: Any, path: str) -> Any:
    if isinstance(own, Mapping) and isinstance(site, Mapping):
        merged = dict(own)
        for key, value in site.items():
            inner = f"{path}.{key}".lstrip(".")
            if inner in _DECIDED or str(key).startswith("$"):
                raise _refused(f"set {inner}")
            merged[key] = _merge(own[key], value, inner) if key in own else value
        return merged
    if own == site or path in _CHANGEABLE:
        return site
    if isinstance(own, list) and isinstance(site, list) and all(isinstance(item, Mapping) for item in (*own, *site)):
        return _append(own, site, path)
    raise _refused(f"change {path}")


def _append(own: list[Any], site: list[Any], path: str) -> list[Any]:
    key = "mountPath" if path.endswith(".volumeMounts") else "name"
    merged = list(own)
    for item in site:
        number = next((number for number, other in enumerate(own) if key in other and other[key] == item.get(key)), None)
        if number is None:
            merged.append(item)
        else:
            merged[number] = _merge(own[number], item, f"{path}[{item[key]}]")
    return merged


def _refused(what: str) -> UsageError:
    hint = (
        "leave it out: repro-env decides the command, its image, its mounts, its rights and its limits, some of them by options"
    )
    return UsageError(f"the template of a job cannot {what}", where="--job-template", hint=hint)
