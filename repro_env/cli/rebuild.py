"""`repro-env rebuild`: build the image of a spec, and print only its ID on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from repro_env.api.rebuild import Rebuilt, rebuild
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import DryRunOption, SpecArgument, flag, value
from repro_env.schema.errors import UsageError
from repro_env.specs.argument import open_spec
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.api.send import Delivery
    from repro_env.delivery.builder.build import Plan


def command(
    spec: SpecArgument = None,
    output: Annotated[
        str | None,
        value(
            "WHERE",
            "Write the image to oci:DIR[:TAG], docker-archive:FILE[:NAME], docker:[NAME], or "
            "HOST/REPOSITORY:TAG. Default: unpack it in the store, for exec.",
            "--output",
            "-o",
        ),
    ] = None,
    with_source: Annotated[
        bool,
        flag("--with-source", "With --output: add the captured code as the last layer. This changes the image ID."),
    ] = False,
    frozen: Annotated[
        bool,
        flag("--frozen", "With --with-source: add the captured code even if the code next to the spec differs."),
    ] = False,
    user: Annotated[
        str | None,
        value(
            "UID[:GID]",
            "With --output: start the image as this numeric user. This changes the image ID. Default: root.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Build the exact image that a spec describes, and print its ID.

    Missing files are downloaded. The command fails if the image would not be identical to the captured one.
    """
    options = [name for name, given in (("--with-source", with_source), ("--user", user is not None)) if given]
    if output is None and options:
        from repro_env.delivery.targets import argument

        raise UsageError(f"{options[0]} requires --output", hint=f"choose an output: {argument.FORMS}")
    if frozen and not with_source:
        raise UsageError("--frozen requires --with-source", hint="leave it out: an image without --with-source has no code")
    store = Store.open()
    location = open_spec(spec, store=store, tell=messages.say)
    result: Rebuilt | Delivery
    if output is None:
        result = rebuild(location, dry_run=dry_run, store=store, tell=messages.say)
    else:
        from repro_env.api.send import send
        from repro_env.delivery.targets import argument

        target = argument.parse(output)
        result = send(
            location, target, dry_run=dry_run, source=with_source, frozen=frozen, user=user, store=store, tell=messages.say
        )
    if messages.answer_in_json(result):
        return
    if dry_run:
        _show(result.plan)
    elif not isinstance(result, Rebuilt):
        _describe(result, options)
    messages.result(result.image_id)
    if output is None:
        # The next command must name the spec too if it was opened from a bundle file or a registry.
        word = spec if location.runs is not None else None
        unbuilt = dry_run and result.plan is not None
        following = f"rebuild {word or ''}" if unbuilt else f"exec {f'--spec {word} ' if word else ''}COMMAND"
        messages.say(f"next: repro-env {following}".rstrip())


def _describe(result: Delivery, options: list[str]) -> None:
    if result.image_id != result.environment_image_id:
        messages.say(
            f"the image ID differs from that of the environment because of {' and '.join(options)}; "
            f"the environment has {result.environment_image_id}"
        )
    manifest = f", manifest {result.manifest_digest}" if result.manifest_digest else ""
    messages.say(f"wrote {len(result.made)} of {len(result.layers)} layers ({messages.size(result.sent)})")
    messages.say(f"the image is at {result.where}{manifest}")


def _show(plan: Plan | None) -> None:
    if plan is None:
        messages.say.warn("the image is up to date: nothing would be built")
        return
    for item in plan.items:
        where = f"  {item.where}" if item.where else ""
        messages.say.warn(f"{item.what:<32} {item.origin:<8} {messages.size(item.size):>10}{where}")
