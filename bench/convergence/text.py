"""The text of the convergence runs: the same bytes at every commit and on every machine.

Made up, so that nobody has rights in it: syllables become words, common and rare ones by Zipf's law;
each word has a few that like to follow it; sentences, headings, lists and figures give it some 80
different characters. All by integers, because Python promises no sequence of its random numbers.
"""

import hashlib

SHA256 = "12d8c66ffee601b13ace559a0986dd814fa13020f36ad816aafef298470277ac"
BYTES = 256 * 1024
WORDS = 2000
FOLLOWERS = 6

ONSETS = ("", "b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "pl", "qu",
          "r", "s", "sh", "st", "t", "th", "tr", "v", "w", "z")
VOWELS = ("a", "e", "e", "i", "o", "u", "ai", "ea", "ou", "y")
CODAS = ("", "", "", "l", "m", "n", "nd", "ng", "r", "rt", "s", "st", "t", "x")


class Draw:
    """SplitMix64 (Steele, Lea, Flood 2014)."""

    def __init__(self, seed):
        self._state = seed

    def below(self, limit):
        self._state = (self._state + 0x9E3779B97F4A7C15) % 2**64
        value = self._state
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
        return (value ^ (value >> 31)) % limit

    def of(self, choices):
        return choices[self.below(len(choices))]


class Writer:
    def __init__(self):
        self._draw = Draw(1)
        words = {}
        while len(words) < WORDS:
            # Short words come first, and what comes first is common.
            syllables = 1 + self._draw.below(1 + min(3, len(words) // 100))
            word = "".join(self._draw.of(part) for _ in range(syllables) for part in (ONSETS, VOWELS, CODAS))
            words[word] = None
        self._words = list(words)
        self._weights = [10**6 // (rank + 3) for rank in range(WORDS)]
        self._sum = sum(self._weights)
        self._followers = [[self._any() for _ in range(FOLLOWERS)] for _ in self._words]

    def _any(self):
        """The place of a word, common ones more often."""
        left = self._draw.below(self._sum)
        for place, weight in enumerate(self._weights):
            left -= weight
            if left < 0:
                return place
        raise AssertionError("weights do not add up")

    def _phrase(self, count):
        """Words of which two in three are what likes to follow the last."""
        words, place = [], self._any()
        for _ in range(count):
            words.append(self._words[place])
            place = self._draw.of(self._followers[place]) if self._draw.below(3) else self._any()
        return words

    def _sentence(self):
        words = self._phrase(4 + self._draw.below(14))
        for place in range(2, len(words) - 1):
            chance = self._draw.below(60)
            if chance < 5:
                words[place] += ","
            elif chance == 5:
                words[place] += ";"
            elif chance == 6:
                words[place] = f"`{words[place]}_{words[place - 1].strip(',;`')}`"
            elif chance == 7:
                words[place] = str(self._draw.below(1000))
            elif chance == 8:
                words[place] = f"({words[place]})"
        words[0] = words[0].capitalize()
        return " ".join(words) + self._draw.of(".........?!:")

    def _paragraph(self):
        kind = self._draw.below(12)
        if kind == 0:
            return "## " + " ".join(self._phrase(3)).capitalize()
        if kind == 1:
            return "\n".join("- " + " ".join(self._phrase(2 + self._draw.below(6))) for _ in range(4))
        if kind == 2:
            return "\n".join(f"| {self._words[self._any()]} | {self._draw.below(100)}.{self._draw.below(10)} |"
                             for _ in range(4))
        return " ".join(self._sentence() for _ in range(2 + self._draw.below(5)))

    def text(self, size):
        paragraphs, length = [], 0
        while length < size:
            paragraphs.append(self._paragraph() + "\n\n")
            length += len(paragraphs[-1])
        return "".join(paragraphs).encode("ascii")[:size]


def fixed_text():
    """Its bytes, which are looked at: figures of two texts must not be compared."""
    text = Writer().text(BYTES)
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        raise AssertionError(f"the text of the convergence runs has changed: its SHA-256 is {found}, not {SHA256}. "
                             "Figures on another text cannot be compared with earlier ones.")
    return text
