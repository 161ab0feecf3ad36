// See graph_memory.h.
#include "trace/graph_memory.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

namespace ingot::trace {

void GraphRoom::save(at::Tensor value) {
    const void* const at = value.const_data_ptr();
    saved_.insert_or_assign(at, std::move(value));
}

void GraphRoom::release(const void* at) {
    if (const auto found = saved_.find(at); found != saved_.end()) found->second.reset();
}

std::shared_ptr<const at::Tensor> GraphMemory::arena(std::int64_t bytes) {
    if (bytes == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    expect(bytes);
    std::shared_ptr<const at::Tensor> known = arena_.lock();
    if (known != nullptr && known->numel() >= bytes) return known;
    const auto options = at::TensorOptions().dtype(at::kByte).device(device_);
    known = std::make_shared<const at::Tensor>(at::empty({expected_}, options));
    arena_ = known;
    return known;
}

void GraphMemory::add(const std::shared_ptr<GraphRoom>& room) {
    const std::lock_guard lock(mutex_);
    std::erase_if(rooms_, [](const auto& r) { return r.expired(); });
    rooms_.push_back(room);
}

std::shared_ptr<GraphRoom> GraphMemory::room_of(const void* at) const {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : rooms_)
        if (auto room = weak.lock(); room != nullptr && room->saved_at(at)) return room;
    return nullptr;
}

void RecordingMemory::take_at_once(std::int64_t bytes) const {
    if (bytes > 0)
        c10::GetAllocator(device_.type())->allocate(static_cast<std::size_t>(bytes)).clear();
}

void* RecordingMemory::make_piece(std::size_t piece, std::size_t bytes) {
    c10::DataPtr memory = c10::GetAllocator(device_.type())->allocate(bytes);
    void* const data = memory.get();
    pieces_.insert_or_assign(piece, std::move(memory));
    return data;
}

}  // namespace ingot::trace
