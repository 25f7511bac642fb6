"""Runs a file of unit tests and prints one line for each, then what failed.

Exits with 0 if there were tests and all passed.
"""

import sys
import unittest


class Result(unittest.TextTestResult):
    def startTest(self, test):
        unittest.TestResult.startTest(self, test)

    def say(self, word, test):
        print(f"{word:5} {test.id()}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say("ok", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say("FAIL", test)

    def addError(self, test, err):
        super().addError(test, err)
        self.say("ERROR", test)


def main(path):
    suite = unittest.defaultTestLoader.discover(".", pattern=path)
    result = Result(unittest.runner._WritelnDecorator(sys.stdout), False, 0)
    suite.run(result)
    result.printErrors()
    tests = f"{result.testsRun} test" + ("" if result.testsRun == 1 else "s")
    print(f"{tests}, {len(result.failures) + len(result.errors)} failed")
    return 0 if result.testsRun and result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
