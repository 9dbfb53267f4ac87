// shoal completion: the scripts that teach shells to complete shoal's command lines. They ask the program
// itself (complete.h), so they never differ from it.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"

namespace shoal::cli {
namespace {

constexpr const char* kBash = R"sh(# bash completion of shoal
_shoal() {
  local line=${COMP_LINE:0:COMP_POINT} words candidate kept= files=
  read -ra words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  local word=${words[${#words[@]}-1]}
  # bash replaces only the text behind the last of these characters.
  [[ $COMP_WORDBREAKS == *=* && $word == *=* ]] && kept=${word%"${word##*=}"}
  [[ $COMP_WORDBREAKS == *:* && ${word#"$kept"} == *:* ]] && kept=${word%"${word##*:}"}
  COMPREPLY=()
  while IFS=$'\t' read -r candidate _; do
    if [[ $candidate == :files ]]; then
      files=${word##*=}
      compopt -o filenames 2>/dev/null
      while IFS= read -r candidate; do COMPREPLY+=("$candidate"); done < <(compgen -f -- "$files")
    else
      [[ $candidate == *[=.:] ]] && compopt -o nospace 2>/dev/null
      COMPREPLY+=("${candidate#"$kept"}")
    fi
  done < <("${words[0]/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
}
complete -F _shoal shoal
)sh";

constexpr const char* kZsh = R"sh(#compdef shoal
# zsh completion of shoal
_shoal() {
  local value meaning files
  local -a whole whole_shown begun begun_shown
  while IFS=$'\t' read -r value meaning; do
    if [[ $value == :files ]]; then
      files=yes
    elif [[ $value == *[=.:] ]]; then
      begun+=("$value") begun_shown+=("$value  $meaning")
    else
      whole+=("$value") whole_shown+=("$value  $meaning")
    fi
  done < <(${~words[1]} __complete "${(@Q)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)
  (( $#whole )) && compadd -l -d whole_shown -a whole
  (( $#begun )) && compadd -l -S '' -d begun_shown -a begun
  if [[ -n $files ]]; then
    compset -P '*='
    _files
  fi
}
if [[ $funcstack[1] == _shoal ]]; then
  _shoal "$@"
else
  compdef _shoal shoal
fi
)sh";

constexpr const char* kFish = R"sh(# fish completion of shoal
function __shoal_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    for line in ($program __complete $words "$word" 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path "$word"
        else
            echo $line
        end
    end
end
complete -c shoal -f -a '(__shoal_complete)'
)sh";

void print_completion(const std::string& shell) {
  fmt::print("{}", shell == "bash" ? kBash : shell == "zsh" ? kZsh : kFish);
}

}  // namespace

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  auto* command = add_command(
      app, "completion", "Print the script that lets a shell complete shoal's commands, options and keys",
      {{"source <(shoal completion bash)", "for this shell; in ~/.bashrc for every one"},
       {"shoal completion bash > ~/.local/share/bash-completion/completions/shoal", "the same by a file"},
       {"shoal completion zsh > ~/.zfunc/_shoal", "a folder of zsh's fpath"},
       {"shoal completion fish > ~/.config/fish/completions/shoal.fish", "for fish"}});
  command->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(takes_one_of({"bash", "zsh", "fish"}));
  command->callback([shell] { print_completion(*shell); });
}

}  // namespace shoal::cli
