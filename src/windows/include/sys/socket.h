/* socket.h — empty: posix.h, which every file includes, has what it declares elsewhere. */
