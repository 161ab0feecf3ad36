// The headers of PyTorch that every file of the extension needs, read once.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>
