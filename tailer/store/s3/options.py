"""The options of the S3 store.

Options that are not set come from where the AWS tools take them: environment, profile, instance.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailer.errors import ConfigError
from tailer.setting_fields import DeclaredOptions, declared, settings_of
from tailer.settings import Setting, SettingTable
from tailer.store.objects.options import OF_THE_CLIENT, make_spelling, parse_url_option

_MIB = 1024 * 1024


def _parse_encryption(text: str) -> str | None:
    if text and text not in ("AES256", "aws:kms", "aws:kms:dsse"):
        raise ValueError(text)
    return text or None


@dataclass(frozen=True, slots=True)
class S3Options(DeclaredOptions):
    """The options of the S3 store; stores with equal options share their limits.

    ``elsewhere`` are the names that object_store, and so deltalake, uses for them.
    """

    # fmt: off
    endpoint_url: str | None = declared(Setting(
        "text", None, "Address of the server.", form="http://host or https://host",
        parse=parse_url_option, elsewhere=("endpoint", "endpoint_url_s3"),
        unset="`AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, the profile's, or AWS",
    ))
    region: str | None = declared(Setting(
        "text", None, "Region; a bucket in another region is found automatically.",
        elsewhere=("default_region",),
        unset="`AWS_DEFAULT_REGION`, the profile's, `AWS_REGION`, or `us-east-1`",
    ))
    profile: str | None = declared(Setting(
        "text", None, "Profile of `~/.aws/config`.", unset="`AWS_PROFILE`",
        advanced=True,
    ))
    path_style: bool | None = declared(Setting(
        "flag", None, "Put the bucket name in the path instead of the host name.",
        unset="false on AWS, true elsewhere",
        advanced=True,
    ))
    anonymous: bool = declared(Setting(
        "flag", False, "Send unsigned requests, for public buckets.", elsewhere=("skip_signature",),
        advanced=True,
    ))
    access_key_id: str | None = declared(Setting(
        "text", None, "Access key, used instead of any other credentials; requires "
        "`secret_access_key`.",
        secret=True, unset="found as below",
    ))
    secret_access_key: str | None = declared(Setting(
        "text", None, "Secret key of `access_key_id`.", secret=True,
    ))
    session_token: str | None = declared(Setting(
        "text", None, "Session token of temporary credentials.", secret=True,
        elsewhere=("token",),
        advanced=True,
    ))
    role_arn: str | None = declared(Setting(
        "text", None, "Role to assume, with the credentials that are found otherwise.",
        advanced=True,
    ))
    role_external_id: str | None = declared(Setting(
        "text", None, "External id that the role asks for.", advanced=True,
    ))
    sts_endpoint_url: str | None = declared(Setting(
        "text", None, "Address of the server that grants roles.",
        form="http://host or https://host", parse=parse_url_option, elsewhere=("endpoint_url_sts",),
        unset="the region's", advanced=True,
    ))
    ca_file: str | None = declared(Setting(
        "text", None, "PEM file of authorities to trust besides the well-known ones.",
        elsewhere=("ca_bundle", "ca_bundle_path"),
        unset="`AWS_CA_BUNDLE`",
        advanced=True,
    ))
    requester_pays: bool = declared(Setting(
        "flag", False, "Accept charges of requester-pays buckets.", elsewhere=("request_payer",),
        advanced=True,
    ))
    server_side_encryption: str | None = declared(Setting(
        "text", None, "How the server encrypts what is written: offsets, and the files of sinks.",
        form="AES256, aws:kms or aws:kms:dsse", parse=_parse_encryption,
        unset="the bucket's default", advanced=True,
    ))
    sse_kms_key_id: str | None = declared(Setting(
        "text", None, "The key in KMS; requires `aws:kms` as `server_side_encryption`.",
        unset="the account's own", advanced=True,
    ))
    sse_bucket_key_enabled: bool = declared(Setting(
        "flag", False, "Encrypt with a key of the bucket, which takes fewer requests to KMS.",
        advanced=True,
    ))
    requests_max: int = declared(Setting(
        "whole", 64, "Concurrent requests of all tables that share these options.",
        unit="requests", advanced=True,
    ))
    memory_bytes_max: int = declared(Setting(
        "whole", 256 * _MIB, "Limit of prefetched bytes of all tables that share these options. A "
        "quarter of it is the limit of one table, and of one open data file. 0 disables "
        "prefetching.", unit="bytes", least=0, advanced=True,
    ))
    # fmt: on

    def __post_init__(self) -> None:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigError("access_key_id and secret_access_key go together: give both or none")
        if self.access_key_id is None:
            if self.session_token is not None:
                raise ConfigError("session_token belongs to an access_key_id, and there is none")
        elif self.anonymous or self.profile is not None:
            other = "anonymous" if self.anonymous else "profile"
            raise ConfigError(f"access_key_id and {other} exclude each other; give one")

        if self.role_arn is None and self.role_external_id is not None:
            raise ConfigError("role_external_id belongs to a role_arn, and there is none")
        if self.role_arn is not None and self.anonymous:
            raise ConfigError("role_arn and anonymous exclude each other; give one")
        kms = (self.server_side_encryption or "").startswith("aws:kms")
        if not kms and (self.sse_kms_key_id is not None or self.sse_bucket_key_enabled):
            raise ConfigError(
                'sse_kms_key_id and sse_bucket_key_enabled need server_side_encryption = "aws:kms"'
            )

    @classmethod
    def setting_table(cls) -> SettingTable:
        return SettingTable(
            "the S3 store", settings_of(cls),
            text=True, spelling=make_spelling("aws_"), answers=_ANSWERS,
        )  # fmt: skip


_ONLY_READS = "it is for writers, and this store only reads; leave it out"
_OF_THE_ADDRESS = "the bucket is that of the table's address; leave it out"
#: Options of object_store that have no meaning here.
_ANSWERS = {
    "allow_http": "an endpoint_url with http:// is enough; leave it out",
    "allow_invalid_certificates": "name the server's authority as ca_file",
    "virtual_hosted_style_request": "give path_style, which says the opposite",
    "s3_allow_unsafe_rename": _ONLY_READS,
    "s3_locking_provider": _ONLY_READS,
    "conditional_put": _ONLY_READS,
    "copy_if_not_exists": _ONLY_READS,
    **OF_THE_CLIENT,
    "bucket": _OF_THE_ADDRESS,
    "bucket_name": _OF_THE_ADDRESS,
}
