/* socket.c — the functions of socket.h on Winsock. */
#if defined(_WIN32)
#include "windows/socket.h"

#undef bind
#undef getaddrinfo
#undef gethostname
#undef listen
#undef recv
#undef setsockopt
#undef socket

/* Sets errno from Winsock's error if `result` is a failure; returns `result`. */
static int checked(int result) {
    static const struct {
        int error, number;
    } rows[] = {{WSAEADDRINUSE, EADDRINUSE},
                {WSAEADDRNOTAVAIL, EADDRNOTAVAIL},
                {WSAEACCES, EACCES},
                {WSAEAFNOSUPPORT, EAFNOSUPPORT},
                {WSAEWOULDBLOCK, EWOULDBLOCK},
                {WSAECONNRESET, ECONNRESET},
                {WSAECONNABORTED, ECONNABORTED},
                {WSAEMFILE, EMFILE},
                {WSAENOBUFS, ENOBUFS}};
    int error = result < 0 ? WSAGetLastError() : 0;
    if (result < 0) errno = EIO;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (error == rows[i].error) errno = rows[i].number;
    return result;
}

int tn_win_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    WSADATA data;
    int error = WSAStartup(MAKEWORD(2, 2), &data);
    return error ? error : getaddrinfo(host, service, hints, out);
}

/* The system's own texts are in the user's code page. */
const char *tn_win_gai_strerror(int error) {
    if (error == EAI_NONAME || error == WSANO_DATA) return "no such host";
    if (error == EAI_AGAIN) return "the name server does not answer";
    if (error == EAI_MEMORY) return "out of memory";
    return "the name cannot be resolved";
}

/* The handle of a socket fits an int: Windows uses 32 bits of handles. */
int tn_win_socket(int family, int type, int protocol) { return checked((int)socket(family, type, protocol)); }

/* Windows reuses such addresses anyway, and its SO_REUSEADDR would let others take this one. */
int tn_win_set_reuse(int s) {
    const DWORD on = 1;
    return checked(setsockopt((SOCKET)s, SOL_SOCKET, SO_EXCLUSIVEADDRUSE, (const char *)&on, sizeof on));
}

int tn_win_bind(int s, const struct sockaddr *address, size_t size) {
    return checked(bind((SOCKET)s, address, (int)size));
}

int tn_win_listen(int s, int backlog) { return checked(listen((SOCKET)s, backlog)); }

ssize_t tn_win_recv(int s, void *to, size_t bytes, int flags) {
    return checked(recv((SOCKET)s, to, (int)(bytes < INT_MAX ? bytes : INT_MAX), flags));
}

int tn_win_close_socket(int s) { return checked(closesocket((SOCKET)s)); }

int tn_win_gethostname(char *name, size_t size) { return checked(gethostname(name, (int)(size < 256 ? size : 256))); }

#else
typedef int tn_sockets_are_there; /* a file of C is not empty */
#endif
