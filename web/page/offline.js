// offline.js — a service worker that keeps the page's own files, so that it opens without a network.
//
// tools/web.py writes the two constants: a name that changes with the files, and their list. The module that this
// browser uses is in the address.
const NAME = '@NAME@';
const FILES = ['@FILES@'].concat(new URL(location).searchParams.get('module') ?? []);

self.addEventListener('install', (event) => {
  event.waitUntil((async () => {
    const cache = await caches.open(NAME);
    await cache.addAll(FILES.map((file) => new Request(file, { cache: 'reload' })));
    await self.skipWaiting();
  })());
});

self.addEventListener('activate', (event) => {
  event.waitUntil((async () => {
    for (const name of await caches.keys()) if (name !== NAME) await caches.delete(name);
    await self.clients.claim();
  })());
});

self.addEventListener('fetch', (event) => {
  event.respondWith((async () => (await (await caches.open(NAME)).match(event.request, { ignoreSearch: true })) ?? fetch(event.request))());
});
