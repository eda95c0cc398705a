"""The command line: parse, call, print."""

import sys

_COMMANDS = {"bench": "time and memory of the node, a layer or a network against their alternatives"}


def main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("usage: ppln COMMAND [--help]\n")
        for command, what in _COMMANDS.items():
            print(f"  {command:10}{what}")
    elif name not in _COMMANDS:
        sys.exit(f"ppln: there is no command {name!r}; there are: {', '.join(_COMMANDS)}")
    else:
        _bench(arguments)


def _bench(arguments: list[str]) -> None:
    try:
        import tyro
    except ModuleNotFoundError:
        sys.exit("ppln: the command line needs tyro; run: pip install 'ppln[train]'")
    from ppln import bench

    options = tyro.cli(
        bench.Bench, args=arguments, prog="ppln bench", config=(tyro.conf.PositionalRequiredArgs,)
    )
    try:
        result = bench.run(options)
    except ValueError as error:
        sys.exit(f"ppln bench: {error}")
    print(bench.table(result))
    if options.out is not None:
        print(f"wrote {options.out}")
