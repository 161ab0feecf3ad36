// See size_history.h.
#include "capture/size_history.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

namespace ingot::capture {
namespace {

/// What `ingot.mark_dynamic` and its relatives left at a tensor.
class Marks {
  public:
    explicit Marks(PyObject* tensor) {
        PyObject** dict = _PyObject_GetDictPtr(tensor);
        if (dict != nullptr && *dict != nullptr && PyDict_GET_SIZE(*dict) != 0) dict_ = *dict;
    }
    bool is_dynamic(std::int64_t dim) const {
        return has("_dynamo_dynamic_indices", dim) || has("_dynamo_weak_dynamic_indices", dim);
    }
    bool must_be_dynamic(std::int64_t dim) const { return has("_dynamo_dynamic_indices", dim); }
    bool is_static(std::int64_t dim) const { return has("_dynamo_static_indices", dim); }
    /// The range given with the mark.
    trace::SymbolicSize range(std::int64_t dim, trace::SymbolicSize size) const {
        PyObject* ranges = find("_dynamo_dynamic_range");
        Ref all = Ref::steal(ranges == nullptr ? nullptr : PySequence_List(ranges));
        if (!all) PyErr_Clear();
        for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(all.get()); ++i) {
            PyObject* range = PyList_GET_ITEM(all.get(), i);
            if (!PyTuple_Check(range) || PyTuple_GET_SIZE(range) != 3) continue;
            if (PyLong_AsLongLong(PyTuple_GET_ITEM(range, 0)) != dim) continue;
            PyObject *least = PyTuple_GET_ITEM(range, 1), *most = PyTuple_GET_ITEM(range, 2);
            if (PyLong_Check(least))
                size.range.lo = std::max<std::int64_t>(size.range.lo, PyLong_AsLongLong(least));
            if (PyLong_Check(most))
                size.range.hi = std::min<std::int64_t>(size.range.hi, PyLong_AsLongLong(most));
        }
        if (PyErr_Occurred()) PyErr_Clear();
        return size;
    }

  private:
    PyObject* find(const char* name) const {
        return dict_ == nullptr ? nullptr : PyDict_GetItemString(dict_, name);
    }
    bool has(const char* name, std::int64_t dim) const {
        PyObject* set = find(name);
        if (set == nullptr || !PyAnySet_Check(set)) return false;
        const Ref number = Ref::steal(PyLong_FromLongLong(dim));
        const int found = number ? PySet_Contains(set, number.get()) : 0;
        if (found < 0) PyErr_Clear();
        return found > 0;
    }
    PyObject* dict_ = nullptr;
};

}  // namespace

Range SizeHistory::range_for(std::int64_t value) {
    constexpr std::int64_t kUsual = std::int64_t{1} << 20, kLarge = std::int64_t{1} << 40;
    return {2, value < kUsual / 4 ? kUsual : kLarge};
}

void SizeHistory::begin_recording() {
    ++recording_;
    groups_.clear();
    unusual_ = false;
}

bool SizeHistory::changes(std::int64_t& seen, std::int64_t value, Dynamic dynamic) {
    if (seen != kFixed && seen != value) seen = kChanges;
    if (fixed_ || dynamic == Dynamic::Never || seen == kFixed) return false;
    const bool open = seen == kChanges || dynamic == Dynamic::Always;
    if (value == 0 || value == 1) {
        unusual_ = unusual_ || open;
        return false;
    }
    return open;
}

const std::string& SizeHistory::name_of(const Slot& slot, std::int64_t value) {
    auto& trail = trails_[slot];
    trail[recording_] = value;
    const auto differ = [&](const Slot& other) {
        for (const auto& [recording, was] : trails_[other])
            if (const auto here = trail.find(recording); here != trail.end() && here->second != was)
                return true;
        return false;
    };
    std::size_t alike = 0;
    for (Group& group : groups_) {
        if (group.value != value) continue;
        ++alike;
        if (std::ranges::any_of(group.slots, differ)) continue;
        group.slots.push_back(slot);
        return group.name;
    }
    std::string name = "s" + std::to_string(value);
    if (alike != 0) name += "_" + std::to_string(alike);
    groups_.push_back({std::move(name), value, {slot}});
    return groups_.back().name;
}

std::vector<trace::SymbolicSize> SizeHistory::sizes_of(const std::string& path, PyObject* tensor,
                                                       Dynamic dynamic) {
    const at::Tensor& t = THPVariable_Unpack(tensor);
    const auto rank = static_cast<std::size_t>(t.dim());
    const std::string key = path + "/" + std::to_string(rank);
    auto& seen = seen_[key];
    if (seen.empty()) seen.assign(t.sizes().begin(), t.sizes().end());
    const Marks marks(tensor);
    std::vector<trace::SymbolicSize> sizes(rank);
    for (std::size_t d = 0; d < rank; ++d) {
        const auto dim = static_cast<std::int64_t>(d);
        const std::int64_t value = t.size(dim);
        const bool marked = marks.is_dynamic(dim);
        const bool open = changes(seen[d], value, marked ? Dynamic::Always : dynamic);
        const std::string& name = name_of({key, d}, value);
        if (!open || marks.is_static(dim)) continue;
        unusual_ = unusual_ || name.find('_') != std::string::npos;
        sizes[d].range = range_for(value);
        if (marked) {
            sizes[d] = marks.range(dim, sizes[d]);
            if (value < sizes[d].range.lo || value > sizes[d].range.hi) continue;
            sizes[d].name = (marks.must_be_dynamic(dim) ? "m" : "w") + std::to_string(named_++);
        } else {
            sizes[d].name = name;
        }
        users_[sizes[d].name].emplace_back(key, d);
    }
    return sizes;
}

trace::SymbolicSize SizeHistory::number_of(const std::string& path, std::int64_t value,
                                           Dynamic dynamic) {
    const std::string key = path + "/int";
    auto& seen = seen_[key];
    if (seen.empty()) seen.push_back(value);
    trace::SymbolicSize number;
    if (!changes(seen[0], value, dynamic)) return number;
    number.range = range_for(value < 0 ? -value : value);
    if (value < 0) number.range = {-number.range.hi, -1};
    if (value >= number.range.hi || value <= -(std::int64_t{1} << 40)) return number;
    number.name = "i" + std::to_string(named_++);
    users_[number.name].emplace_back(key, 0);
    return number;
}

std::string SizeHistory::float_of(const std::string& path, double value, Dynamic dynamic) {
    const auto [it, first] = floats_.try_emplace(path, Float{value});
    Float& known = it->second;
    // Not equal to itself: not a number, which few programs treat as one more float.
    if (!first && known.seen != value) known.changes = true;
    if (floats_fixed_ || dynamic == Dynamic::Never || known.fixed || !known.changes) return {};
    std::string name = "f" + std::to_string(float_paths_.size());
    float_paths_[name] = path;
    return name;
}

bool SizeHistory::varies(const std::string& path, PyObject* tuple, Dynamic dynamic, bool& first) {
    const auto [it, fresh] = tuples_.try_emplace(path, Ref::borrow(tuple), false);
    auto& [seen, varied] = it->second;
    first = fresh;
    varied = varied || seen.get() != tuple;
    return varied && dynamic != Dynamic::Never && !(fixed_ && floats_fixed_);
}

void SizeHistory::fix(const std::string& symbol) {
    if (const auto f = float_paths_.find(symbol); f != float_paths_.end()) {
        floats_[f->second].fixed = true;
        return;
    }
    const auto found = users_.find(symbol);
    if (found == users_.end()) return;
    for (const auto& [key, dim] : found->second) seen_[key][dim] = kFixed;
    users_.erase(found);
}

}  // namespace ingot::capture
