"""Arguments of `gossamer completion`."""

from gossamer.cli.command import Parser, command

SHELLS = ("bash", "zsh", "fish")


@command(
    "completion",
    "gossamer.cli.completion:completion",
    'eval "$(gossamer completion bash)"                in ~/.bashrc',
    'eval "$(gossamer completion zsh)"                 in ~/.zshrc, after compinit',
    "gossamer completion fish > ~/.config/fish/completions/gossamer.fish",
)
def completion(parser: Parser) -> None:
    """Print a script that completes commands and options in a shell."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
