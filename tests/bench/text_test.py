"""Convergence runs train on the same bytes at every commit."""

import hashlib
import unittest
from unittest import mock

import support  # finds convergence
from convergence import text


class Text(unittest.TestCase):
    def test_has_the_bytes_that_figures_were_taken_on(self):
        self.assertEqual(hashlib.sha256(text.fixed_text()).hexdigest(),
                         "12d8c66ffee601b13ace559a0986dd814fa13020f36ad816aafef298470277ac")

    def test_of_other_bytes_is_refused(self):
        with mock.patch.object(text, "FOLLOWERS", text.FOLLOWERS + 1), \
             self.assertRaisesRegex(AssertionError, "the text of the convergence runs has changed"):
            text.fixed_text()

    def test_has_language_to_learn(self):
        """Common and rare characters and words, as pages have; gzip finds in it what it finds in ours."""
        content = text.fixed_text()
        self.assertGreater(len(set(content)), 60)
        words = content.split()
        self.assertGreater(words.count(b"shaist"), 50)


if __name__ == "__main__":
    unittest.main()
