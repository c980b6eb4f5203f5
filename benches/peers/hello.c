/* A CGI program that does next to nothing: what it costs is starting it. */
#include <unistd.h>

int main(void) {
    static const char answer[] = "Content-Type: text/plain\nContent-Length: 13\n\nHello, world!";
    return write(STDOUT_FILENO, answer, sizeof answer - 1) == sizeof answer - 1 ? 0 : 1;
}
