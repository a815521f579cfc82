"""Messages are written once, in Python's words; here they become a shell's."""

import re
import sys
from collections.abc import Mapping

# Arguments of the functions behind the commands, and how a shell says them; those of protocols come from their specifications.
_SHARING = {
    "shard": "--shard", "executor": "--executor", "workers": "--workers", "address": "--address",
    "gpus_per_worker": "--gpus-per-worker",
}  # fmt: skip
_COMMON = {
    "path": "--data-file", "limit": "--limit", "seed": "--seed", "columns": "--columns", "spans": "--spans", "device": "--device",
    "dtype": "--dtype", "overwrite": "--overwrite", "dataset_name": "--dataset", "anchors": "--anchors", "quantity": "--quantity",
    "known_only": "--known-only", "n_donors": "--n-donors", "n_resamples": "--resamples",
    "n_devices": "--n-devices", "stream": "--stream", "bands": "--bands",
    "contrasts": "--contrasts", "resume": "--resume", "force_new": "--force-new",
} | _SHARING  # fmt: skip
_PHRASES = (
    ("Choose another path", "Choose another --out"),
    ("A sweep's save(", "`anchorlens swap ... --out` makes one ("),
    (" Rename its fields, or give a frame.", ""),
)


def in_shell(text: str, flags: Mapping[str, str] | None = None, *, only: Mapping[str, str] | None = None) -> str:
    """A message with flags in place of arguments: ``donors='random'`` becomes ``--donors random``.

    Args:
        text: In Python's words.
        flags: Argument -> flag, of the command that was given; beside those that all commands have.
        only: These and no others.

    >>> in_shell("Take more questions (limit= up to 90), or give overwrite=True.")
    'Take more questions (--limit up to 90), or give --overwrite.'
    """
    known = dict(only) if only is not None else _COMMON | dict(flags or {})
    for python, shell in _PHRASES:
        text = text.replace(python, shell)
    names = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
    # What stands in quotes is a value (of a file, a prompt), not an argument.
    pattern = rf"(?<![\w=])'[^'\n]*'|(?<![\w=])\"[^\"\n]*\"|(?<![\w'./,-])({names})=({_VALUE})?"
    text = re.sub(pattern, lambda found: _flag(known[found[1]], found[2] or "") if found[1] else found[0], text)
    # At the head of a message, and where it cannot be a common word, the bare name is the argument too.
    text = re.sub(rf"^({names}) (?=must|takes|is\b)", lambda found: f"{known[found[1]]} ", text)
    bare = "|".join(sorted((name for name in known if "_" in name), key=len, reverse=True)) or "(?!)"
    return re.sub(rf"(?<![\w'./-])({bare})(?![\w'=/-])", lambda found: known[found[1]], text)


def translated(text: str) -> str:
    """A message as the command that was given says it; a study's file has the names of arguments itself."""
    from anchorlens.protocols.registry import PROTOCOLS, specification_of

    given = next((word for word in sys.argv[1:] if not word.startswith("-")), "").replace("-", "_")
    if given == "run":
        return in_shell(text, only={"overwrite": "--overwrite", "resume": "--resume", "force_new": "--force-new"} | _SHARING)
    if given not in PROTOCOLS:
        return in_shell(text)
    arguments = specification_of(given).arguments()
    return in_shell(text, {name: flag_of(name, one.flag) for name, one in arguments.items() if one.shell})


def flag_of(name: str, flag: str = "") -> str:
    """The flag of an argument: its own where it has one."""
    return flag or "--" + name.replace("_", "-")


_VALUE = r"'[^']*'|\"[^\"]*\"|\{[^}]*\}|\([^)]*\)|\[[^\]]*\]|[\w.+-]*\w"


def _flag(flag: str, value: str) -> str:
    if value in ("", "True"):
        return flag
    if value.startswith("{"):  # columns={'question': 'q'}
        pairs = re.findall(r"'([^']*)':\s*'([^']*)'", value)
        return f"{flag} {','.join(f'{one}={two}' for one, two in pairs)}"
    if value[0] in "([":
        return f"{flag} {','.join(part.strip().strip(chr(39)) for part in value[1:-1].split(',') if part.strip())}"
    bare = value[1:-1] if value[0] in "'\"" else value
    return f"{flag} '{bare}'" if re.search(r"[\s()<>*]", bare) or not bare else f"{flag} {bare}"


__all__ = ["flag_of", "in_shell", "translated"]
