"""The part of the table of keys about TLS, logins and authorization.

Owns these rows only. Does not know keys of single listeners (`listeners`), nor what a value leads to.
"""

from __future__ import annotations

from metaquorum.runtime.config.key import BROKER, CONTROLLER, MIB, Key, bytes_key, ms_key

_ONLY_PEM = "Only PEM is read; Kafka's other types are accepted if no file is set."

TLS = (
    Key(
        "ssl.keystore.location",
        "text",
        None,
        "PEM file with this node's private key (not encrypted) and certificate chain; also its client "
        "certificate. Required for an SSL listener.",
    ),
    Key("ssl.keystore.type", "choice", "pem", _ONLY_PEM, choices=("pem", "jks", "pkcs12")),
    Key(
        "ssl.truststore.location",
        "text",
        None,
        "PEM file with the CA certificates that must have signed the peers' certificates.",
    ),
    Key("ssl.truststore.type", "choice", "pem", _ONLY_PEM, choices=("pem", "jks", "pkcs12")),
    Key(
        "ssl.client.auth",
        "choice",
        "none",
        "`required`: clients must send a certificate signed by a CA in the truststore. `requested`: on "
        "Kafka listeners they may. A listener with SASL asks for none unless "
        "`listener.name.NAME.ssl.client.auth` says so.",
        choices=("none", "requested", "required"),
    ),
    Key(
        "ssl.principal.mapping.rules",
        "text",
        "DEFAULT",
        "How a certificate's distinguished name becomes the user: `RULE:pattern/replacement/`, then `L` "
        "or `U` for lower or upper case; or `DEFAULT`. The first match counts.",
    ),
)

ACCESS = (
    Key(
        "authorizer.class.name",
        "text",
        "",
        "`org.apache.kafka.metadata.authorizer.StandardAuthorizer`: Kafka listeners enforce access "
        "control entries, and gRPC listeners admit who may act on the cluster. Empty: everything is "
        "allowed.",
    ),
    Key(
        "authorizer.log.path",
        "text",
        "",
        "File for the authorizer's decisions, one JSON object per line; five full files are kept. Empty: "
        "the node's log.",
        own=True,
    ),
    Key(
        "authorizer.log.allowed",
        "choice",
        "false",
        "Whether allowed requests are logged too.",
        choices=("false", "true"),
        own=True,
    ),
    bytes_key(
        "authorizer.log.max.bytes",
        10 * MIB,
        "Size at which a new file begins.",
        minimum=4096,
        own=True,
    ),
    Key(
        "super.users",
        "text",
        "",
        "Principals with all rights: `User:alice;User:bob`.",
    ),
    Key(
        "allow.everyone.if.no.acl.found",
        "choice",
        "false",
        "Whether a resource without an applicable entry is open to everyone.",
        choices=("false", "true"),
    ),
    Key(
        "quota.window.num",
        "int",
        11,
        "Windows over which a client's rate is measured.",
        minimum=2,
        maximum=1_000,
        roles=(BROKER,),
    ),
    Key(
        "quota.window.size.seconds",
        "int",
        1,
        "Length of such a window.",
        minimum=1,
        maximum=3_600,
        unit="s",
        roles=(BROKER,),
    ),
    Key(
        "replication.quota.window.num",
        "int",
        11,
        "Windows for throttled replication.",
        minimum=1,
        maximum=1_000,
        roles=(BROKER,),
    ),
    Key(
        "replication.quota.window.size.seconds",
        "int",
        1,
        "Length of such a window.",
        minimum=1,
        maximum=3_600,
        unit="s",
        roles=(BROKER,),
    ),
    Key(
        "controller.quota.window.num",
        "int",
        11,
        "Number of windows of `controller_mutation_rate`; a client may use up their quotas at once.",
        minimum=1,
        maximum=1_000,
        roles=(CONTROLLER,),
    ),
    Key(
        "controller.quota.window.size.seconds",
        "int",
        1,
        "Length of such a window.",
        minimum=1,
        maximum=3_600,
        unit="s",
        roles=(CONTROLLER,),
    ),
    Key(
        "sasl.enabled.mechanisms",
        "list",
        ("GSSAPI",),
        "Mechanisms of SASL listeners: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`. The "
        "default (Kerberos) is not supported.",
        roles=(BROKER,),
    ),
    Key(
        "sasl.mechanism.inter.broker.protocol",
        "text",
        "GSSAPI",
        "How brokers log in to each other on a SASL listener: `PLAIN`, `SCRAM-SHA-256` or "
        "`SCRAM-SHA-512`, with `username` and `password` in "
        "`listener.name.NAME.MECHANISM.sasl.jaas.config`.",
        roles=(BROKER,),
    ),
    ms_key(
        "connections.max.reauth.ms",
        0,
        "Time after which a client that logged in with SASL must log in again. 0: never.",
        minimum=0,
        roles=(BROKER,),
    ),
    ms_key(
        "connection.failed.authentication.delay.ms",
        100,
        "Delay of the answer to a failed login.",
        minimum=0,
        maximum=10_000,
        roles=(BROKER,),
    ),
    ms_key(
        "connection.authentication.timeout.ms",
        30_000,
        "Maximum time for a connection's TLS handshake and login.",
        roles=(BROKER,),
        own=True,
    ),
    Key(
        "sasl.server.max.receive.size",
        "int",
        524_288,
        "Maximum size of a request before the login.",
        minimum=1_024,
        unit="bytes",
        roles=(BROKER,),
    ),
    Key(
        "sasl.oauthbearer.jwks.endpoint.url",
        "text",
        None,
        "File with the keys that sign tokens, as `file:///path`: a JWK set, read again when it changes. "
        "Other URLs are refused.",
        roles=(BROKER,),
    ),
    Key(
        "sasl.oauthbearer.expected.audience",
        "list",
        (),
        "A token must have one of these audiences. Default: any.",
        roles=(BROKER,),
    ),
    Key(
        "sasl.oauthbearer.expected.issuer",
        "text",
        None,
        "Issuer that a token must have. Default: any.",
        roles=(BROKER,),
    ),
    Key(
        "sasl.oauthbearer.clock.skew.seconds",
        "int",
        30,
        "Allowed difference between the clocks of issuer and broker.",
        maximum=600,
        unit="s",
        roles=(BROKER,),
    ),
    Key(
        "sasl.oauthbearer.sub.claim.name",
        "text",
        "sub",
        "Claim of a token that names the user.",
        roles=(BROKER,),
    ),
)
