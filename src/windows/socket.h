/* socket.h — POSIX socket functions on Winsock. In a build for Windows, CMakeLists.txt makes the system's headers
 * of sockets include this file. A socket is an int; in files that include this one, close() closes sockets only. */
#ifndef TN_WINDOWS_SOCKET_H
#define TN_WINDOWS_SOCKET_H

#undef pollfd /* Winsock has a structure of this name, for sockets only */
#include <winsock2.h>
#include <ws2tcpip.h>
#define pollfd tn_win_pollfd

enum { MSG_DONTWAIT = 0 }; /* libmicrohttpd's sockets never wait */

/* Results and errno are those of POSIX. tn_win_getaddrinfo also starts Winsock, so it must be called first. */
int tn_win_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out);
const char *tn_win_gai_strerror(int error);
int tn_win_socket(int family, int type, int protocol);
int tn_win_set_reuse(int s); /* SO_REUSEADDR as POSIX means it: never an address in use */
int tn_win_bind(int s, const struct sockaddr *address, size_t size);
int tn_win_listen(int s, int backlog);
ssize_t tn_win_recv(int s, void *to, size_t bytes, int flags);
int tn_win_close_socket(int s);
int tn_win_gethostname(char *name, size_t size);

#define getaddrinfo tn_win_getaddrinfo
#undef gai_strerror
#define gai_strerror tn_win_gai_strerror
#define socket(family, type, protocol) tn_win_socket(family, type, protocol)
#define setsockopt(s, level, option, value, size) ((void)(value), tn_win_set_reuse(s))
#define bind tn_win_bind
#define listen tn_win_listen
#define recv tn_win_recv
#define getsockname(s, address, size) getsockname((SOCKET)(s), address, size)
#define gethostname tn_win_gethostname
#undef close
#define close tn_win_close_socket

#endif
