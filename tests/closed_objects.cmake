# Every object of kernels has one global name, that of its table.
if(NOT OBJECTS)
  message(FATAL_ERROR "no objects were named")
endif()
foreach(object ${OBJECTS})
  execute_process(COMMAND ${NM} --extern-only --defined-only --format=just-symbols ${object}
    OUTPUT_VARIABLE names COMMAND_ERROR_IS_FATAL ANY)
  string(STRIP "${names}" names)
  get_filename_component(table ${object} NAME_WE)
  if(NOT names STREQUAL table)
    message(FATAL_ERROR "${object} defines more than ${table}:\n${names}")
  endif()
endforeach()
