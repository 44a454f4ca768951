# The CPU's kernels are compiled once per instruction set and chosen at run time (backend/cpu/isa.h); everything else is
# compiled for any processor. What such an object file defines must not be what others are linked with: an inline
# function or a template of the standard library, compiled for AVX-512 and kept by the linker as the one copy, would
# kill the program elsewhere. So the objects of a set are joined into one, in which all names are local but that of a
# table, through which the kernels are called.
find_program(INLAY_OBJCOPY objcopy REQUIRED)

set(inlay_isa_baseline "${inlay_baseline_options}")
set(inlay_isas baseline)
set(inlay_partial_isas "")
set(inlay_product_isas "")  # which a process may be told to use beside inlay_isas
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # GCC's own AVX-512 headers start registers from themselves, and are warned about it.
  set(quiet -Wno-maybe-uninitialized -Wno-uninitialized)
  set(inlay_isa_avx2 -march=x86-64-v3)
  set(inlay_isa_avx512 -march=x86-64-v4 -mprefer-vector-width=512 ${quiet})
  set(inlay_isa_amx ${inlay_isa_avx512} -mavx512bf16 -mamx-tile -mamx-bf16)
  list(APPEND inlay_isas avx2 avx512)
  # Sets in which only some kernels differ from those of AVX-512.
  set(inlay_partial_isas amx)
  set(inlay_product_isas avx512_bf16 amx)  # the first has no kernels of ours: oneDNN's differ
endif()

# Adds to a library the kernels of `sources`, for the instruction set `isa`. The table is called inlay_NAME_ISA; the
# source that defines it calls it INLAY_TABLE.
function(inlay_kernels library name isa sources)
  set(objects ${library}_${isa})
  set(table inlay_${name}_${isa})
  add_library(${objects} OBJECT ${sources})
  set_target_properties(${objects} PROPERTIES UNITY_BUILD ${INLAY_UNITY} UNITY_BUILD_BATCH_SIZE 10)
  inlay_fast(${objects})
  # Unique symbols are global for good, whatever objcopy is told.
  target_compile_options(${objects} PRIVATE ${inlay_isa_${isa}} -fno-gnu-unique)
  target_compile_definitions(${objects} PRIVATE INLAY_TABLE=${table})
  target_link_libraries(${objects} PRIVATE inlay_common_flags)
  set(closed ${CMAKE_CURRENT_BINARY_DIR}/${table}.o)
  add_custom_command(OUTPUT ${closed}
    COMMAND ${CMAKE_LINKER} -r --force-group-allocation -o ${closed} $<TARGET_OBJECTS:${objects}>
    COMMAND ${INLAY_OBJCOPY} --keep-global-symbol=${table} ${closed}
    DEPENDS ${objects} $<TARGET_OBJECTS:${objects}>
    COMMAND_EXPAND_LISTS VERBATIM)
  set_source_files_properties(${closed} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(${library} PRIVATE ${closed})
  set_property(GLOBAL APPEND PROPERTY INLAY_CLOSED_OBJECTS ${closed})
endfunction()
