# Every command sets the environment up first when it has to. TORCH=cpu, TORCH=cu126, ... choose another build of PyTorch,
# FRAMEWORKS=yes adds Lightning and TensorFlow; `no` takes them away again.
PYTHON ?= python3
IN := .venv/bin/python

.PHONY: ready browser lab doctor test test-slow test-all gpu-check bench record exercises book lint format
.DEFAULT_GOAL := lab

ready:
	@$(PYTHON) .ci/bootstrap.py

browser: ready
	@$(IN) .ci/chromium.py

lab: ready            ## open JupyterLab on the course (PORT=8890, BROWSER=no)
	@$(IN) .ci/lab.py

doctor: ready         ## is this machine ready for the course, and if not, what cures it
	@$(IN) -m course_utils.doctor

# On all cores what may run beside others, then one by one what measures or has a limit of seconds.
define run_tests
	@failed=0; \
	$(IN) -m pytest -n logical --dist loadgroup -m "$(1) and not alone" || failed=1; \
	$(IN) -m pytest -m "$(1) and alone" || failed=1; \
	exit $$failed
endef

test: browser         ## what every change must pass
	$(call run_tests,not slow)

test-slow test-all: export FRAMEWORKS = yes

test-slow: browser    ## what test-all has beyond test
	$(call run_tests,slow)

test-all: test test-slow   ## everything

gpu-check: ready      ## launch and train on the GPUs of this machine
	$(IN) -m pytest -m gpu --durations=0

bench: ready          ## what a launch costs here, warm and cold, against torchrun; predicted against measured steps
	$(IN) .ci/bench.py
	$(IN) .ci/bench_predict.py

record: ready         ## run lessons here and keep their main results under data/recorded/ (LESSONS="04 00")
	$(IN) .ci/record.py $(LESSONS)

exercises: ready      ## write exercises/ from solutions/
	$(IN) .ci/exercises.py

book: ready           ## run the lessons and write them as web pages into book/
	$(IN) .ci/book.py

lint: ready           ## style, types, notebooks without outputs, exercises in step
	@$(IN) .ci/lint.py

format: ready         ## mend what can be mended by itself
	@$(IN) .ci/lint.py --fix
