/**
 * A self-signed certificate for `localhost` and 127.0.0.1, valid for a hundred years, with its private key. It is
 * public, protects nothing, and no program trusts it: for SMTP and HTTPS peers of tests only.
 */

export const certificateForTests = `-----BEGIN CERTIFICATE-----
MIIBsjCCAVmgAwIBAgIUNhjpT7D3pdxA2ItCQTi7RmEAiqQwCgYIKoZIzj0EAwIw
IDEeMBwGA1UEAwwVUG9zdGlsbGlvbiB0ZXN0cyBvbmx5MCAXDTI2MTEyMTEyMDA0
NloYDzIxMjYxMDI4MTIwMDQ2WjAgMR4wHAYDVQQDDBVQb3N0aWxsaW9uIHRlc3Rz
IG9ubHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQ//Ru6jhz9j1HhridtZwjI
OHh9xR2w7zYrXkRIWEcNmqsR2iiv9s/XQcCOMhWSvuAlSrpbd0ZV8DqkWqD4jMnx
o28wbTAdBgNVHQ4EFgQURVfjyDXoF/i+py2f8OmFTkuKVKAwHwYDVR0jBBgwFoAU
RVfjyDXoF/i+py2f8OmFTkuKVKAwDwYDVR0TAQH/BAUwAwEB/zAaBgNVHREEEzAR
gglsb2NhbGhvc3SHBH8AAAEwCgYIKoZIzj0EAwIDRwAwRAIgR6jZBRTs+ucBs7+B
BFMpgsuAHvK/wnSxz7GUMXPQ8XcCIGkq/LE1lPNLlrpB1KsCawjizrt7J6XJmlxh
OOb/QfV6
-----END CERTIFICATE-----
`;

export const privateKeyForTests = `-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgvKx6+qEoKWWPNol2
s/5E/dr3J4tkT7nA3b6iS7KkOA6hRANCAAQ//Ru6jhz9j1HhridtZwjIOHh9xR2w
7zYrXkRIWEcNmqsR2iiv9s/XQcCOMhWSvuAlSrpbd0ZV8DqkWqD4jMnx
-----END PRIVATE KEY-----
`;
