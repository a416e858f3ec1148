#!/usr/bin/env bash
# kubectl runs this as kubectl_complete-crossfade with the words behind `kubectl crossfade`, of which the last is to be completed.
source <(crossfade completions bash)
COMP_WORDS=(crossfade "$@")
COMP_CWORD=$#
_crossfade crossfade "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"
echo :0 # where there is nothing, names of files
