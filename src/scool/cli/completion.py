"""`scool completion bash|zsh`: a script that completes commands, methods, options and datasets. It
holds all words, since starting Python at every Tab would take seconds."""

import os
from collections.abc import Sequence
from typing import Any

from scool.algorithms import METHODS
from scool.cli.compare import CompareCommand
from scool.cli.help import Option, options_of
from scool.cli.run import RunCommand
from scool.cli.tune import TuneCommand
from scool.data.catalogue import DataConfig
from scool.data.datasets import DATASETS, OWN_TABLE
from scool.errors import ConfigError, nearest

USAGE = """usage: scool completion bash|zsh

bash:  scool completion bash > ~/.local/share/bash-completion/completions/scool
zsh:   scool completion zsh > ~/.scool.zsh, and into ~/.zshrc: source ~/.scool.zsh
"""
SCRIPT = """# Tab completion of scool, with the methods and options of the day it was made.
_scool() {
  local now="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="@COMMANDS@"
  elif [ "$before" = --dataset ]; then
    words="@DATASETS@"
  elif [ "$COMP_CWORD" -eq 2 ] && [ "${COMP_WORDS[1]}" = run ]; then
    words="@METHODS@"
  else
    case "$now" in -*) case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in
@OPTIONS@
    esac ;; esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$now"))
}
complete -o default -F _scool scool
"""
FOR_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"


def completion(arguments: Sequence[str]) -> int:
    shell = os.path.basename(os.environ.get("SHELL", "")) if not arguments else arguments[0]
    if shell in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if shell not in ("bash", "zsh") or len(arguments) > 1:
        raise ConfigError(f"unknown shell {shell!r}: {nearest(shell, ('bash', 'zsh'))}")
    print((FOR_ZSH if shell == "zsh" else "") + script(), end="")
    return 0


def script() -> str:
    """For bash, and for zsh in its bash mode."""
    from scool.cli.main import COMMANDS

    data = DataConfig()
    commands: dict[str, Any] = {f'"run {name}"': RunCommand.of(name, data) for name in METHODS}
    commands |= {"compare*": CompareCommand.on(data), "tune*": TuneCommand.on(data)}
    cases = (
        f'      {case}) words="{" ".join(map(_flag, options_of(command)))} --help --help-all" ;;'
        for case, command in commands.items()
    )
    filled = {
        "@COMMANDS@": " ".join(COMMANDS),
        "@DATASETS@": " ".join(name for name in DATASETS if name != OWN_TABLE),
        "@METHODS@": " ".join(METHODS),
        "@OPTIONS@": "\n".join(cases),
    }
    text = SCRIPT
    for mark, words in filled.items():
        text = text.replace(mark, words)
    return text


def _flag(option: Option) -> str:
    return option.flag
