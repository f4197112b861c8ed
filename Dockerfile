# What is copied from the checkout is named in .dockerignore. test/journeys/packaging.system.test.ts follows these steps in a folder:
# all paths in RUN are relative. Images are named by their digests, so that a build is the same whoever makes it, and
# .github/dependabot.yml has them replaced.
FROM node:22-bookworm-slim@sha256:43ac6c60b8f89723f746e8a92ce91abd5017e627ce1ddfe4238355d3a30b772c AS build
WORKDIR /build
COPY package.json package-lock.json ./
RUN npm ci --ignore-scripts
COPY . .
RUN npm run package && tar -xzf postillion-*.tgz

# The package is built and brings what it needs. The embedded PostgreSQL is not in the image: a container is given its
# DATABASE_URL.
FROM node:22-bookworm-slim@sha256:43ac6c60b8f89723f746e8a92ce91abd5017e627ce1ddfe4238355d3a30b772c
ENV NODE_ENV=production HOST=0.0.0.0 PORT=8025
WORKDIR /opt/postillion
COPY --from=build /build/package ./
USER node
EXPOSE 8025
# Of the process, and not of the database, which no new container brings back. A worker has no port: turn it off there.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.PORT}/healthz`).then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1))"]
# As process 1 it gets the signals itself; what it starts, it waits for.
ENTRYPOINT ["node", "bin/postillion"]
CMD ["serve"]
