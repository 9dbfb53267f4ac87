# Shortcuts. `make` is the first run and `make test` the tests; both install what is needed (see scripts/).

.PHONY: quickstart build test bench asan tsan lint format clean

quickstart:
	@scripts/quickstart.sh
build:
	@scripts/build.sh
test:
	@scripts/test.sh
bench:
	@scripts/build.sh bench_train_step bench_ops bench_tokenizer

# The tests under sanitizers. The thread sanitizer takes the rooms that have threads of their own.
asan:
	cmake --preset asan && cmake --build --preset asan && ctest --test-dir build/asan --output-on-failure -j 2
tsan:
	cmake --preset tsan && cmake --build --preset tsan --target test_core test_ops test_comm test_data test_checkpoint test_generate test_serve
	TSAN_OPTIONS="suppressions=$(CURDIR)/tests/thread_sanitizer.supp" ctest --test-dir build/tsan --output-on-failure -j 2 -R '^(core|ops|comm|data|checkpoint|generate|serve)\.' -E 'ops.level'

# Needs the packages clang-format and clang-tidy.
lint:
	clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp')
	run-clang-tidy -quiet -p build/release 'src/.*\.cpp'
format:
	clang-format -i $$(git ls-files '*.h' '*.cpp')

clean:
	rm -rf build out
