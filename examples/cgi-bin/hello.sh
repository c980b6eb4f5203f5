#!/bin/sh
# Shows a request as a program sees it.
printf 'Content-Type: text/plain\n\n'
printf 'Hello from %s, process %s\n\n' "$SCRIPT_NAME" "$$"
env | sort
