# Thin: each target is a line or two of scripts/ and CMake. CUDA=1 or CUDA=0 overrides the look for a GPU.
.PHONY: quickstart build test test_long bench format install python wheel bundle fuzz clean
PREFIX ?= /usr/local
PYTHON ?= python3

quickstart: ## raw text to a trained model, on any machine
	scripts/bootstrap
	scripts/build flashstep_program
	build/flashstep train configs/quickstart.json

build: ## the program and the library; the tests are built by `make test`
	scripts/bootstrap
	scripts/build flashstep_program

# A test more than processors at a time: many of them wait. Without a network for PyPI's packages the comparisons with
# them are skipped, and ctest says so. `make test_long` runs those of half a minute and more. The quickstart's own test
# (label slow) is .ci/run's, which looks at the run of `make quickstart`.
test:
	scripts/bootstrap
	scripts/build
	-scripts/bootstrap --python
	ctest --test-dir build/$$(scripts/preset) --output-on-failure -j$$(($$(nproc) + 1)) -LE "slow|long"

test_long: test
	ctest --test-dir build/$$(scripts/preset) --output-on-failure -j$$(($$(nproc) + 1)) -L long

bench:
	scripts/bootstrap --peers
	scripts/bench

format:
	scripts/format

install: build
	cmake --install build/$$(scripts/preset) --prefix $(PREFIX)

# Python's package, for the torch 2.11 of $(PYTHON): in the checkout, or as a wheel in build/.
python:
	$(PYTHON) python/build_backend.py

wheel:
	$(PYTHON) -m pip wheel --no-deps --no-build-isolation --wheel-dir build .

bundle:
	scripts/bootstrap
	scripts/bundle

fuzz:
	scripts/bootstrap --ci
	scripts/fuzz

clean:
	rm -rf build
