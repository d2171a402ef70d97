# cmake --install (filled in by the set-up room).
