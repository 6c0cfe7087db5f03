# Tests that only script/night runs, by executable, as patterns of GoogleTest: long ones whose promise a shorter test
# holds as well.
