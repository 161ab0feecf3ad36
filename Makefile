# The commands of the repository. Every target sets up and builds what it needs first; all can be run again
# at once and from any state.
#
#   make demo    a short list of models, eager, torch.compile and Ingot side by side
#   make test    all tests
#   make bench   the whole list of models
#   make lint    formatters and linters (make format applies the formatters)
#   make wheel   the wheel, in dist/
#   make clean   remove what building made
VENV := $(if $(INGOT_VENV),$(INGOT_VENV),.venv)
VENV_PYTHON := $(abspath $(VENV))/bin/python
BUILD := build
export PYTHONPATH := $(CURDIR)/python

.PHONY: demo test bench lint format build setup wheel clean
.DEFAULT_GOAL := build

setup:
	@scripts/setup.sh

build: setup
	@PYTHON="$(VENV_PYTHON)" scripts/build.sh $(BUILD)

demo: build
	@"$(VENV_PYTHON)" -m ingot.bench.demo

test: build
	@PYTHON="$(VENV_PYTHON)" scripts/test.sh $(BUILD)

bench: build
	@mkdir -p out
	@"$(VENV_PYTHON)" -m ingot.bench --models main --batch 1,8 --dtype fp32,bf16 \
	    --against eager,inductor,inductor-freeze,onnxruntime,openvino --json out/bench.json --plot out/bench.png

lint: setup
	@PYTHON="$(VENV_PYTHON)" scripts/lint.sh

format: setup
	@PYTHON="$(VENV_PYTHON)" scripts/lint.sh --fix

wheel: build
	@PYTHON="$(VENV_PYTHON)" scripts/wheel.sh dist

clean:
	rm -rf build build-* dist out python/ingot/*.so python/*.dist-info
