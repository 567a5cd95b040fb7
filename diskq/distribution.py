# The name under which diskq is installed. Law: what tells a user what to install takes the name from here.
#
# It is not the name of the import: on the package index `diskq` is another project, which is imported under
# that name, too, so a hint with it would replace diskq by that project.

from __future__ import annotations

__all__ = ["DISTRIBUTION", "install_command"]

DISTRIBUTION = "diskqueue"


def install_command(extra: str) -> str:
    """Return the command that installs diskq with an extra: "pip install 'diskqueue[hub]'"."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
