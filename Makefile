# SPDX-License-Identifier: Apache-2.0
# The front door. Every target first makes sure that the packages it needs are there.
.DEFAULT_GOAL := help
.PHONY: help bootstrap build demo test tsan soak fuzz bench format docs

help:
	@echo 'make demo     build the command and run bundled checkpoints of real model families'
	@echo 'make build    build library, command and tests (build/cpu)'
	@echo 'make test     everything that a change must pass; BASE=<commit> limits clang-tidy'
	@echo 'make tsan     run the tests in which threads meet under the thread sanitizer'
	@echo 'make soak     full test matrices, repeated, under the sanitizers (hours)'
	@echo 'make fuzz     fuzz each parser of files for a minute'
	@echo 'make bench    time published layers in every format against the roof and their bars'
	@echo 'make format   apply clang-format to all sources'
	@echo 'make docs     write the generated parts of the pages'

bootstrap:
	@sh scripts/bootstrap.sh

build: bootstrap
	cmake --preset cpu
	cmake --build --preset cpu

demo: bootstrap
	@python3 scripts/demo.py

test: bootstrap
	@python3 scripts/test.py

tsan: bootstrap
	@python3 scripts/test.py --tsan

soak: bootstrap
	@python3 scripts/test.py --soak

fuzz: bootstrap
	@python3 scripts/fuzz.py

bench: bootstrap
	@python3 scripts/bench.py

format: bootstrap
	@python3 scripts/format.py --apply

docs: bootstrap
	cmake --preset cpu
	cmake --build --preset cpu --target switchyard_facts
	@python3 scripts/docs.py --apply
