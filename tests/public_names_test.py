"""The names that public headers declare: the list is kept in public_names.txt, so that none comes, goes or changes by
accident, and the library exports every function of it. `public_names_test.py --write` writes the list anew."""
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parent / "flashstep"
LIST = HERE / "public_names.txt"
DECLARATION = re.compile(
    r"(?:template <[^{;]*?>\s*)?(?:inline |constexpr |explicit |\[\[\w+\]\] )*"
    r"(?:(?P<kind>struct|class|enum class|using) (?P<type>\w+)|[\w:<>,&* \[\]]+?[ &*](?P<function>\w+)\()")


def statements(text):
    """What stands directly in namespace flashstep: comments, bodies and other namespaces left out."""
    text = re.sub(r"//[^\n]*|^#.*(?:\\\n.*)*$", "", text, flags=re.M)
    for inside in re.findall(r"^namespace flashstep \{\n(.*?)^\}\s*\Z", text, re.M | re.S):
        depth, statement = 0, ""
        for letter in inside:
            if letter == "{":
                depth += 1
            elif letter == "}":
                depth -= 1
                if depth == 0:
                    yield statement.strip()
                    statement = ""
            elif depth == 0:
                statement += letter
                if letter == ";":
                    yield statement.strip()
                    statement = ""


def names(header):
    found = {}
    for statement in statements(header.read_text()):
        match = DECLARATION.match(statement)
        if not match:
            continue
        if match["kind"] in ("struct", "class") and re.fullmatch(r"(struct|class) \w+;", statement):
            continue  # declared for others
        name = match["type"] or match["function"]
        is_function = match["function"] and not re.match(r"template|inline|constexpr", statement)
        found[name] = "function" if is_function else "name"
    return found


def exported(library):
    """Names of the functions in flashstep that `library` defines for others."""
    symbols = subprocess.run(["nm", "-D", "-C", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r" [TW] flashstep::(\w+)(?:\[abi:\w+\])?\(", symbols))


def main():
    headers = sorted(LIBRARY.glob("*.h"))
    found = {header.name: names(header) for header in headers}
    lines = [f"{header}: {' '.join(sorted(found[header]))}" for header in sorted(found) if found[header]]
    if sys.argv[1:] == ["--write"]:
        LIST.write_text("\n".join(lines) + "\n")
        return 0
    failures = []
    kept = LIST.read_text().splitlines()
    failures += [f"not in {LIST.name}: {line}" for line in lines if line not in kept]
    failures += [f"in {LIST.name} only: {line}" for line in kept if line not in lines]
    functions = {name for each in found.values() for name, kind in each.items() if kind == "function"}
    failures += [f"declared and not exported: {name}" for name in sorted(functions - exported(os.environ["FLASHSTEP_LIBRARY"]))]
    if len(functions) < 50:
        failures.append(f"found {len(functions)} functions only")
    print("\n".join(failures) or f"{len(functions)} functions, {sum(map(len, found.values()))} names")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
