// See violations.h.
#include "capture/violations.h"

#include <pybind11/pybind11.h>

#include "capture/size_history.h"

namespace ingot::capture {
namespace {

[[noreturn]] void raise(const std::string& text) {
    const Ref module = Ref::steal(PyImport_ImportModule("ingot._errors"));
    const Ref type = Ref::steal(
        module ? PyObject_GetAttrString(module.get(), "ConstraintViolationError") : nullptr);
    if (type) PyErr_SetString(type.get(), text.c_str());
    throw pybind11::error_already_set();
}

void refuse(Expr fixed, std::int64_t value, const GuardSet& guards, const std::string& why) {
    for (const Expr symbol : symbols(fixed)) {
        if (!SizeHistory::is_marked(to_string(symbol))) continue;
        std::string size = to_string(symbol);
        if (const auto source = guards.find_sizes()->source_of(symbol)) {
            const Node& node = guards.nodes[static_cast<std::size_t>(source->first)];
            size = guards.path(node.place) + ".size(" + std::to_string(source->second) + ")";
        }
        std::string text = size + " was marked as dynamic, but the program needs ";
        text += fixed == symbol ? std::string("it") : to_string(fixed);
        raise(text + " to be " + std::to_string(value) + ": " + why);
    }
}

}  // namespace

void refuse_fixed_marks(const trace::SymbolicSizes& symbols, const GuardSet& guards,
                        std::span<const std::string> places) {
    const auto& specialised = symbols.specialised();
    for (std::size_t i = 0; i < specialised.size(); ++i)
        refuse(specialised[i], symbols.hint(specialised[i]), guards,
               i < places.size() ? places[i] : "an operator");
    for (const SizeGuard& g : symbols.guards()) {
        if (g.relation != SizeGuard::Relation::Eq) continue;
        const std::string why = g.reason.empty() ? "a comparison" : g.reason;
        if (g.right.is_constant()) refuse(g.left, g.right.constant(), guards, why);
        if (g.left.is_constant()) refuse(g.right, g.left.constant(), guards, why);
    }
}

}  // namespace ingot::capture
