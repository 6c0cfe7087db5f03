"""One question's results: a JSON file that grows cell by cell and is whole whenever it is read.

A cell is the least that can be measured alone: contestants that take turns share one, because their
ratios are taken within rounds.
"""

import json
import os

from common import watch
from common.report import number

FORMAT = 1


def write_whole(path, content):
    """A reader finds the content before, or this one, also after kill -9 or a power failure."""
    part = path + ".part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


class Record:
    def __init__(self, path, content, names):
        self.path = path
        self._content = content
        self._names = list(names)

    @classmethod
    def start(cls, path, question, identity, names, quick, timed):
        """A new file; one that holds anything is kept as *.previous.json."""
        if os.path.exists(path):
            old = cls.read(path)
            if old is None or old.get("cells"):
                os.replace(path, path.removesuffix(".json") + ".previous.json")
        record = cls(path, {"benchmark": question, "format": FORMAT, "run": identity, "quick": quick,
                            "timed": timed, "cells": []}, names)
        record._write()
        return record

    @classmethod
    def resume(cls, path, names):
        return cls(path, cls.read(path), names)

    @staticmethod
    def read(path):
        """The file's content; None where it is not one of these."""
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
        except ValueError:
            return None
        return content if isinstance(content, dict) and content.get("format") == FORMAT else None

    def add(self, name, value, seconds, others):
        self._content["cells"].append({"name": name, "seconds": seconds, "others": others,
                                       "disturbed": self._content["timed"] and watch.disturbed(others),
                                       "value": value})
        self._write()

    def _write(self):
        reasons = self.reasons()
        self._content.update(complete=not self.left(), quotable=not reasons, not_quotable_because=reasons)
        write_whole(self.path, self._content)

    def measured(self):
        return {cell["name"]: cell for cell in self._content["cells"]}

    def left(self):
        measured = self.measured()
        return [name for name in self._names if name not in measured]

    def reasons(self):
        """Why these figures must not be quoted; nothing where they may."""
        reasons = ["it is a --quick run"] if self._content["quick"] else []
        left = self.left()
        if left:
            reasons.append(f"{len(left)} of {len(self._names)} cells are not measured yet")
        if self._content["timed"]:
            cells = self._content["cells"]
            blind = sum(cell["others"]["worst"] is None for cell in cells)
            if blind:
                reasons.append(f"what others take of the processors could not be seen during {blind} cells")
            reasons += [f"{cell['name']}: others took up to {percent(cell['others']['worst'])} of the processors, "
                        f"{percent(cell['others']['mean'])} on average" for cell in cells if cell["disturbed"]]
        return reasons


def percent(share):
    return f"{number(100 * share, 2)} %"


def view(content, question):
    """The file's content with what the question makes of its cells, for tables and pictures."""
    values = [{**cell["value"], "disturbed": cell["disturbed"]} for cell in content["cells"]]
    return {**content, **question.result(values)}
