// See form_store.h.
#include "runtime/form_store.h"

#include <span>
#include <string_view>

namespace ingot::runtime {

namespace {
constexpr std::string_view kVersion = "ingot gpu forms 1";
}

std::string FormStore::key_of(const std::string& kernel) const {
    const std::string_view parts[] = {kVersion, device_, kernel};
    return content_key(parts);
}

std::optional<codegen::GpuForm> FormStore::find(const std::string& kernel) {
    const std::string key = key_of(kernel);
    {
        const std::lock_guard lock(mutex_);
        if (const auto known = known_.find(key); known != known_.end()) return known->second;
    }
    std::optional<codegen::GpuForm> form;
    if (const auto entry = cache_.load(key)) {
        const auto bytes = entry->bytes();
        form = codegen::parse_gpu_form({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        if (!form) cache_.remove(key);
    }
    const std::lock_guard lock(mutex_);
    return known_.try_emplace(key, form).first->second;
}

void FormStore::put(const std::string& kernel, const codegen::GpuForm& form) {
    const std::string key = key_of(kernel), text = codegen::to_string(form);
    {
        const std::lock_guard lock(mutex_);
        known_[key] = form;
    }
    cache_.store(key, std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}

}  // namespace ingot::runtime
