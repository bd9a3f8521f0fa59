"""``python -m benchmarks.publicbugs.dumping ROOM NAME...``: dumps of each bug and of what is right.

They lie in ROOM/NAME/golden and ROOM/NAME/mine.
"""

import sys
from pathlib import Path

from benchmarks.publicbugs.corpus import golden_of, load, target_of
from benchmarks.publicbugs.running import warm
from benchmarks.publicbugs.tools.dump_and_compare import dumped


def main(room: Path, names: list[str]) -> None:
    warm()
    for name in names:
        bug, place = load(name), room / name
        place.mkdir(parents=True)
        for word, program in (("golden", golden_of(bug, "bug")), ("mine", target_of(bug, "bug"))):
            ran = dumped(program, place / word, place, place / f"result-{word}")
            if ran.status:
                print(f"{name}: its dump ended with {ran.status}\n{ran.stderr}", file=sys.stderr)
                break


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
