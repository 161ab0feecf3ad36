// Forms that a GPU's kernel may have where a model chooses otherwise: how a nest is laid over
// threads, which tile a product has, or that the product is the library's. All forms of a kernel
// compute the same, but for the order in which sums are added up.
//
// Kernels are known by keys that hold everything their code follows from: a nest's text, or
// product_key. Written as one line of text for the disk; a line that is no form is none. Asked by
// the scheduler's choice and by code generation; found by measurement (runtime/gpu_tuner.h).
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "codegen/contraction_gpu/product_form.h"

namespace ingot::codegen {

/// How nests are laid over threads (gpu_mapping.h); 0: as they would be. What a nest cannot do is
/// left out.
struct NestForm {
    unsigned threads = 0;  // of a block
    unsigned each = 0;     // pieces of a row, or points, that a thread works on at once
    unsigned lanes = 0;    // elements of one access, at most
    friend bool operator==(const NestForm&, const NestForm&) = default;
};

/// A product that is left to the library, with a kernel for what follows.
struct LibraryForm {
    friend bool operator==(const LibraryForm&, const LibraryForm&) = default;
};

using GpuForm = std::variant<NestForm, LibraryForm, ProductTile>;

std::string to_string(const GpuForm& form);
/// Nothing for text that this version did not write.
std::optional<GpuForm> parse_gpu_form(std::string_view text);

/// The name of products of this size and type, whatever follows them.
std::string product_key(const ProductForm& form);

/// The form chosen for a kernel, by its key. Empty, or nothing: the model's.
using GpuFormLookup = std::function<std::optional<GpuForm>(const std::string& key)>;

/// The form chosen for `kernel`, whose text is `text`.
std::optional<GpuForm> form_of(const Kernel& kernel, const std::string& text,
                               const GpuFormLookup& forms);

}  // namespace ingot::codegen
