#!/usr/bin/env python3
"""Holds results of our own against our own goals, .ci/goals.json.

    .ci/check_goals.py DIRECTORY...     with what `flashstep bench NAME --out DIRECTORY` wrote

A goal names a file of a result, which rows it is about (numbers by <=, >=, <; a text may end in *, or begin with ! for
"not"), a column, and a bound:
    at_least, most               of every row
    best_of_least, best_of_most  of the best row of each case
    least                        of the geometric mean of `beside`'s value over ours (the device's own kernel, or `implementation`)
    every_row                    of that ratio in every row (`who` names the column of implementations)
    choice_within                of what `auto` takes, forward and backward together, over the fastest that can be named
Exit code 1 where a goal is missed, 0 where all that could be judged are kept. What no file has is not judged.
"""
import json
import math
import sys
from pathlib import Path

GOALS = json.loads((Path(__file__).parent / "goals.json").read_text())
OURS = ("cuda", "cpu", "auto")
CASE = ("model", "ranks", "batch", "context", "precision", "dtype", "rows", "width", "B", "H", "N", "M", "D", "mask", "pass")


def rows_of(path):
    table = json.loads(path.read_text())
    names = [column["name"] for column in table["columns"]]
    return [dict(zip(names, row)) for row in table["rows"]]


def holds(value, wanted):
    if value is None:
        return False
    if isinstance(wanted, str):
        for sign, compare in (("<=", value.__le__), (">=", value.__ge__), ("<", value.__lt__)):
            if wanted.startswith(sign):
                return compare(float(wanted[len(sign):])) is True
        if wanted.startswith("!"):
            return value != wanted[1:]
        if wanted.endswith("*"):
            return value.startswith(wanted[:-1])
    return value == wanted


def number(row, column):
    value = row.get(column)
    if isinstance(value, dict):  # {"number": "nan"}
        value = float(value["number"])
    return value if isinstance(value, (int, float)) else None


def case_of(row):
    return tuple((name, row[name]) for name in CASE if name in row)


def ratios(rows, goal):
    """Of `beside`'s value over ours, by case."""
    cases = {}
    for row in rows:
        value = number(row, goal["of"])
        if value:
            cases.setdefault(case_of(row), {})[row[goal.get("who", "implementation")]] = value
    found = []
    for values in cases.values():
        ours = next((values[name] for name in (goal.get("implementation"), *OURS) if name in values), None)
        if ours and goal["beside"] in values:
            found.append(values[goal["beside"]] / ours)
    return found


def choices(rows, goal):
    """Of the time of what auto takes over the least of all that can be named, by case."""
    cases = {}
    for row in rows:
        if row["pass"] == "both":
            continue  # the sum of the others
        times = {name: number(row, name) for name in ("cuda", "cpu", "tiled", "sdpa", "naive")}
        times[row["ours"]] = number(row, goal["of"])
        case = tuple(item for item in case_of(row) if item[0] != "pass")
        sums = cases.setdefault(case, (row["auto takes"], {}))[1]
        for name, value in times.items():
            sums[name] = math.inf if value is None else sums.get(name, 0) + value
    return [sums[taken] / min(sums.values()) for taken, sums in cases.values() if sums.get(taken, math.inf) < math.inf]


def judge(rows, goal):
    """What was found, and whether that keeps the goal; nothing where there is nothing to judge."""
    if "choice_within" in goal:
        found = choices(rows, goal)
        return (max(found), max(found) <= goal["choice_within"]) if found else None
    if "beside" in goal:
        found = ratios(rows, goal)
        if not found:
            return None
        if "every_row" in goal:
            return min(found), all(ratio >= goal["every_row"] for ratio in found)
        mean = math.exp(sum(map(math.log, found)) / len(found))
        return mean, mean >= goal["least"]
    best = {}
    for i, row in enumerate(rows):
        value = number(row, goal["of"])
        if value is not None:
            best.setdefault(case_of(row) if any(key.startswith("best") for key in goal) else i, []).append(value)
    if not best:
        return None
    if "at_least" in goal or "best_of_least" in goal:
        least = goal.get("at_least", goal.get("best_of_least"))
        worst = min(map(max, best.values()))
        return worst, all(max(values) >= least for values in best.values())
    most = goal.get("most", goal.get("best_of_most"))
    worst = max(map(min, best.values()))
    return worst, all(min(values) <= most for values in best.values())


def main(directories):
    missed = judged = 0
    for directory in map(Path, directories):
        for name, goals in GOALS.items():
            for goal in goals:
                path = directory / goal["file"]
                if not path.exists():
                    continue
                rows = [row for row in rows_of(path) if all(holds(row.get(k), v) for k, v in goal["where"].items())]
                if (result := judge(rows, goal)) is None:
                    continue
                found, kept = result
                judged += 1
                missed += not kept
                bound = {k: v for k, v in goal.items() if k not in ("file", "where", "of")}
                print(f"{'kept  ' if kept else 'MISSED'} {path}: {goal['of']} {bound} where {goal['where']}: {found:.4g}")
    print(f"{judged} goals judged, {missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
