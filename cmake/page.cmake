# The page of `shoal report`: page.html with its style and scripts in it, as a string of the program. They are files of their
# own, so that they can be read, linted and edited as such.
set(page_folder ${PROJECT_SOURCE_DIR}/src/report/page)
set(SHOAL_PAGE "")
file(READ ${page_folder}/page.html SHOAL_PAGE)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page_folder}/page.html)

# Puts the text of a file, in an element of this name, in the place of the reference to it.
function(embed_in_page file reference element)
  file(READ ${page_folder}/${file} text)
  string(FIND "${SHOAL_PAGE}" "${reference}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${page_folder}/page.html has no ${reference}")
  endif()
  string(REPLACE "${reference}" "<${element}>\n${text}</${element}>" page "${SHOAL_PAGE}")
  set(SHOAL_PAGE "${page}" PARENT_SCOPE)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page_folder}/${file})
endfunction()
embed_in_page(page.css "<link rel=\"stylesheet\" href=\"page.css\">" style)
foreach(script text chart charts tables page)
  embed_in_page(${script}.js "<script src=\"${script}.js\"></script>" script)
endforeach()
configure_file(${page_folder}/template.cpp.in ${PROJECT_BINARY_DIR}/generated/report/page/template.cpp @ONLY)
target_sources(shoal_report PRIVATE ${PROJECT_BINARY_DIR}/generated/report/page/template.cpp)
