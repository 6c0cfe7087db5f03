"""The classifier's question: who takes turns with whom, and what the bound is."""

import unittest
from unittest import mock

import support  # finds bench/
from classifier import classifier


class Sets(unittest.TestCase):
    def sets(self, gigabytes, classes=10**7):
        present = {"bound, 1": ([], 1), "Tutti, 1": ([], 1), "Tutti, 1, 10%": ([], 1),
                   "linear_cross_entropy, 32 rows": ([], 1), "bound, 2": ([], 2), "Tutti, 2": ([], 2)}
        with mock.patch.object(classifier, "allowed_bytes", lambda: gigabytes * 10**9):
            return list(classifier.together(present, classes))

    def test_have_tutti_on_one_worker_and_the_bound_of_their_workers(self):
        self.assertEqual(self.sets(100), [
            ["Tutti, 1", "bound, 1", "Tutti, 1, 10%", "linear_cross_entropy, 32 rows"],
            ["Tutti, 1", "bound, 2", "Tutti, 2"]])

    def test_fit_the_memory(self):
        self.assertEqual(self.sets(15), [
            ["Tutti, 1", "bound, 1", "Tutti, 1, 10%"], ["Tutti, 1", "bound, 1", "linear_cross_entropy, 32 rows"],
            ["Tutti, 1", "bound, 2", "Tutti, 2"]])


class Bound(unittest.TestCase):
    def test_is_the_larger_of_products_and_memory_in_each_round(self):
        cell = classifier.bound_of({"median_us": 3, "round_medians_us": [1, 5]},
                                   {"median_us": 2, "round_medians_us": [2, 2]})
        self.assertEqual(cell["round_medians_us"], [2, 5])

    def test_is_an_aim_for_all_of_ten_million_classes_and_a_core_each(self):
        result = {"run": {"cores": 2}}

        def met(column, share, classes=10**7):
            return classifier.met(result, {"classes": classes}, column, {"of_bound": share})

        self.assertEqual([met("Tutti, 2", 0.6), met("Tutti, 2", 0.59)], [True, False])
        for column in ("Tutti, 4", "Tutti, 2, 10%", "DDP, 2"):
            self.assertIsNone(met(column, 0.1))
        self.assertIsNone(met("Tutti, 2", 0.1, 10**6))
        self.assertIsNone(met("Tutti, 2", None))

    def test_counts_for_the_classes_that_take_part(self):
        class Running:
            def __init__(self, column, *_):
                self.column = column

            def ask(self, line):
                what, *count = line.split()
                if what == "peak":
                    return [[10, 2]]
                return [[100 if what == "streams" or self.column == "bound, 1" else 200] * int(count[0])]

            def close(self):
                pass

        watch = mock.MagicMock()
        settings = mock.Mock(rounds=2)
        present = {column: ([], 1) for column in ("bound, 1", "Tutti, 1", "Tutti, 1, 10%")}
        with mock.patch.object(classifier, "Contestant", Running), \
                mock.patch.object(classifier, "contestants", lambda *_: (present, {})):
            [(_, value)] = classifier.measure(None, settings, {"10⁴": 10**4}, watch)
        self.assertEqual(value["columns"]["Tutti, 1"]["of_bound"], 0.5)
        self.assertAlmostEqual(value["columns"]["Tutti, 1, 10%"]["of_bound"], 0.05)
        self.assertEqual(list(value["bounds"]), ["bound, 1"])
        self.assertNotIn("bound, 1", value["columns"])


if __name__ == "__main__":
    unittest.main()
