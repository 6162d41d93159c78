"""How large the code is: lines by room, the longest functions, and how much of the hardest files is comments."""

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

GENERATED = re.compile(r"\.pb\.go$|_gen\.[ch]$|pjrt_abi\.h$")
TEST = re.compile(r"_test\.go$|^tests/|testdata/|(transport|device|status|cluster|trace|wire)test/")
HARDEST = """core/schedule/schedule.go core/schedule/fair.go core/controller/operation.go core/controller/comeback.go
core/worker/devicequeue/queue.go core/worker/run.go transport/bulk/link.go transport/collective/board.go
transport/stream/conn.go capi/embedded/execute.c""".split()
FUNCTION = re.compile(
    r"^(?:func (?:\([^)]*\) )?|(?:static )?[\w ]+\*?\b)(\w+)\([^;]*?\{\n.*?^\}", re.MULTILINE | re.DOTALL
)


def functions(path: str, text: str):
    """The functions of a file: lines, name, path."""
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.end_lineno - node.lineno + 1, node.name, path
    else:
        for match in FUNCTION.finditer(text):
            yield match[0].count("\n") + 1, match[1], path


def main():
    paths = subprocess.check_output(["git", "ls-files", "*.go", "*.c", "*.h", "*.tmpl", "*.py"], text=True).split()
    rooms, longest = {}, {"code": [], "tests": []}
    for path in paths:
        text = Path(path).read_text(encoding="utf-8")
        kind = "generated" if GENERATED.search(path) else "tests" if TEST.search(path) else "code"
        for room in ("/".join(path.split("/")[:-1][:2]), "all"):
            rooms.setdefault(room, Counter())[kind] += text.count("\n")
        if kind in longest:
            longest[kind] += functions(path, text)
    print(f"{'lines':22} {'code':>8} {'tests':>8} {'generated':>10}")
    for room, lines in sorted(rooms.items(), key=lambda each: -each[1].total()):
        print(f"{room or '.':22} {lines['code']:8,} {lines['tests']:8,} {lines['generated']:10,}")
    for kind, found in longest.items():
        found.sort(reverse=True)
        most = found[len(found) // 10][0]
        print(f"\nof {len(found):,} functions of {kind} 90 % have {most} lines or fewer; the longest:")
        for lines, name, path in found[:10]:
            print(f"{lines:4} {name} in {path}")
    print("\nlines that are comments in the hardest files:")
    for path in HARDEST:
        text = Path(path).read_text(encoding="utf-8").splitlines()
        print(f"{sum(line.lstrip().startswith(('//', '/*', '* ')) for line in text) / len(text):4.0%} {path}")


if __name__ == "__main__":
    main()
