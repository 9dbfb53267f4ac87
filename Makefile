# make       installs what is needed, builds, and runs the first job: data, about a minute of training, evaluation, samples
# make test  installs what is needed, builds, and runs all tests
# make build, lint, format, asan, tsan, clean: see below

BUILD := build/release
SHOAL := $(BUILD)/shoal
OUT   := out/quickstart

.PHONY: quickstart build test deps lint format asan tsan clean

quickstart: build
	@mkdir -p $(OUT)
	$(SHOAL) prepare synthetic --out data/synthetic
	rm -rf runs/quickstart
	$(SHOAL) train configs/quickstart.toml
	$(SHOAL) eval --checkpoint runs/quickstart
	$(SHOAL) sample --checkpoint runs/quickstart --samples 3 --max-tokens 600 > $(OUT)/samples.txt
	$(SHOAL) plot runs/quickstart -o $(OUT)/curves.svg
	@echo
	@echo "The loss curve is in $(OUT)/curves.svg, what the model writes in $(OUT)/samples.txt:"
	@echo
	@head -n 30 $(OUT)/samples.txt

deps:
	@scripts/install-deps.sh

build: deps
	@cmake --preset release > build-configure.log 2>&1 || (cat build-configure.log; exit 1)
	@mv build-configure.log $(BUILD)/configure.log
	@cmake --build --preset release --target shoal

test: deps
	@cmake --preset release > build-configure.log 2>&1 || (cat build-configure.log; exit 1)
	@mv build-configure.log $(BUILD)/configure.log
	@cmake --build --preset release
	ctest --test-dir $(BUILD) --output-on-failure -j 2

# The tests under sanitizers. OpenMP's own synchronisation is invisible to the thread sanitizer, so that one runs the rooms
# whose threads are std::thread.
asan: deps
	cmake --preset asan > /dev/null && cmake --build --preset asan && ctest --test-dir build/asan --output-on-failure -j 2
tsan: deps
	cmake --preset tsan > /dev/null && cmake --build --preset tsan --target test_core test_data test_checkpoint
	ctest --test-dir build/tsan --output-on-failure -j 2 -R '^(core|data|checkpoint)\.'

lint:
	clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp')
	run-clang-tidy -quiet -p $(BUILD) 'src/.*\.cpp'

format:
	clang-format -i $$(git ls-files '*.h' '*.cpp')

clean:
	rm -rf build out
