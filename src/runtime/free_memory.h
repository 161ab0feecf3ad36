// Memory that the C library keeps after it was freed.
#pragma once

namespace ingot::runtime {

/// Gives it back to the system: what a compilation leaves behind would otherwise stand beside all
/// that its program works on. Takes milliseconds; does nothing where the C library cannot.
void return_free_memory();

}  // namespace ingot::runtime
