/* socket.h — the socket functions that the sources use, on Winsock. In a build for Windows, the system's headers of
 * sockets are this file (CMakeLists.txt). A socket is an int, and close() closes sockets in files that include this
 * one. */
#ifndef TN_WINDOWS_SOCKET_H
#define TN_WINDOWS_SOCKET_H

#undef pollfd /* Winsock has a structure of this name, for sockets only */
#include <winsock2.h>
#include <ws2tcpip.h>
#define pollfd tn_win_pollfd

enum { MSG_DONTWAIT = 0 }; /* libmicrohttpd's sockets never wait */

/* Starts Winsock; to be called before the functions below. The results of all are POSIX's, errno included. */
int tn_win_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out);
const char *tn_win_gai_strerror(int error);
int tn_win_socket(int family, int type, int protocol);
int tn_win_set_reuse(int s); /* of an address whose last server has ended, but never of one that is in use */
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
