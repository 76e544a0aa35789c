# Every command sets the environment up first when it has to. TORCH=cpu, TORCH=cu126, ... choose another build of PyTorch,
# FRAMEWORKS=yes adds Lightning and TensorFlow; `no` takes them away again.
PYTHON ?= python3
IN := .venv/bin/python

.PHONY: ready ready-tools browser lab doctor test test-lesson test-all rehearse test-gpu gpu-check old-versions bench bench-emulation record exercises release site golden lint format
.DEFAULT_GOAL := lab

ready:
	@$(PYTHON) tools/bootstrap.py

ready-tools:          # what tests and checks need besides
	@$(PYTHON) tools/bootstrap.py tools

browser: ready-tools
	@$(IN) tools/chromium.py

lab: ready            ## open JupyterLab on the course (PORT=8890, BROWSER=no)
	@$(IN) -m course_utils.lab

doctor: ready         ## is this machine ready for the course, and if not, what cures it
	@$(IN) -m course_utils.machine.doctor

# What failed runs once more, alone; what passes then is named at the end (tools/run_tests.py says more). Torch is
# imported once before, so that no test pays for a cold disk.
test: browser         ## what every change must pass: the gate
	@$(IN) -c "import torch"
	$(IN) tools/run_tests.py

test-lesson: export FRAMEWORKS = $(if $(filter 12,$(LESSON)),yes)
test-lesson: browser  ## all that belongs to one lesson: notebook, exercises, every answer, the browser (LESSON=07)
	@$(IN) -c "import torch"
	$(IN) tools/run_tests.py --lesson $(LESSON)

test-all: export FRAMEWORKS = yes
test-all: browser     ## everything, with Lightning and TensorFlow; on Linux install Slurm before
	@$(IN) -c "import torch"
	$(IN) tools/run_tests.py --all

test-gpu: ready-tools  ## launch in every way on the GPUs of this machine
	$(IN) -m pytest -m gpu --durations=0

gpu-check: ready      ## what the GPUs of this machine can do, on one page to send back (gpu-check.txt)
	@$(IN) -m course_utils.benchmarks.gpu_check

old-versions:         ## lessons and launches with the oldest versions that we allow, as on Kaggle and Colab (LESSONS="04 00")
	$(PYTHON) tools/old_versions.py $(LESSONS)

rehearse: ready-tools ## the lessons' programs with a GPU branch, on emulated T4s and H100s, into tests/rehearsals.md; takes an hour or two (ONLY="04 05/hooks")
	$(IN) tools/rehearse.py $(ONLY)

bench: ready-tools    ## what a launch costs here, warm and cold, against torchrun; predicted against measured steps
	$(IN) tools/bench.py
	$(IN) tools/bench_predict.py

bench-emulation: ready-tools ## emulated GPUs against predicted steps, counted memory, published all-reduces and published rates
	$(IN) tools/bench_emulation.py predict
	$(IN) tools/bench_emulation.py links
	$(IN) tools/bench_emulation.py changes
	$(IN) tools/bench_emulation.py parallel
	$(IN) tools/bench_emulation.py language
	$(IN) tools/bench_emulation.py plan
	$(IN) tools/bench_emulation.py memory
	$(IN) tools/bench_emulation.py real
	$(IN) tools/bench_emulation.py published

record: ready-tools   ## run all lessons here and keep their main results under data/recorded/ (LESSONS="04 00": only these)
	$(IN) tools/record.py $(LESSONS)

release:              ## the course for students, without solutions and tests (OUT=~/course)
	@$(PYTHON) tools/release.py $(OUT)

exercises: ready-tools ## write the links between notebooks, and exercises/ from solutions/
	$(IN) tools/navigation.py
	$(IN) tools/exercises.py

site: ready-tools     ## the course as a web site, in site/, with explorers that move: lessons run once, then when their code changes (LESSONS="04 05")
	$(IN) tools/site/build.py $(LESSONS)

golden: ready-tools   ## does a change of the house change what users see: their words, against tests/golden (WRITE=--write keeps them; ONLY="errors answers/04")
	$(IN) tools/golden.py $(WRITE) $(ONLY)

lint: ready-tools     ## style, types, notebooks without outputs, exercises in step
	@$(IN) tools/lint.py

format: ready-tools   ## mend what can be mended by itself
	@$(IN) tools/lint.py --fix
