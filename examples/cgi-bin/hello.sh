#!/bin/sh
# What a request looks like to a program.
printf 'Content-Type: text/plain\n\n'
printf 'Hello from %s, process %s\n\n' "$SCRIPT_NAME" "$$"
env | sort
