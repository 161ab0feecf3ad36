// See free_memory.h.
#include "runtime/free_memory.h"

#include <malloc.h>

namespace ingot::runtime {

void return_free_memory() {
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

}  // namespace ingot::runtime
