"""Requests and responses for access control: SASL, ACLs, SCRAM, quotas and delegation tokens."""

TABLE = """
SaslHandshake 17 versions 0-1 flexible never
request
  Mechanism string
response
  ErrorCode int16
  Mechanisms []string

DescribeAcls 29 versions 0-3 flexible 2+
request
  ResourceTypeFilter int8
  ResourceNameFilter string?
  PatternTypeFilter int8 1+ = 3
  PrincipalFilter string?
  HostFilter string?
  Operation int8
  PermissionType int8
response
  ThrottleTimeMs int32
  ErrorCode int16
  ErrorMessage string?
  Resources []DescribeAclsResource
    ResourceType int8
    ResourceName string
    PatternType int8 1+ = 3
    Acls []AclDescription
      Principal string
      Host string
      Operation int8
      PermissionType int8

CreateAcls 30 versions 0-3 flexible 2+
request
  Creations []AclCreation
    ResourceType int8
    ResourceName string
    ResourcePatternType int8 1+ = 3
    Principal string
    Host string
    Operation int8
    PermissionType int8
response
  ThrottleTimeMs int32
  Results []AclCreationResult
    ErrorCode int16
    ErrorMessage string?

DeleteAcls 31 versions 0-3 flexible 2+
request
  Filters []DeleteAclsFilter
    ResourceTypeFilter int8
    ResourceNameFilter string?
    PatternTypeFilter int8 1+ = 3
    PrincipalFilter string?
    HostFilter string?
    Operation int8
    PermissionType int8
response
  ThrottleTimeMs int32
  FilterResults []DeleteAclsFilterResult
    ErrorCode int16
    ErrorMessage string?
    MatchingAcls []DeleteAclsMatchingAcl
      ErrorCode int16
      ErrorMessage string?
      ResourceType int8
      ResourceName string
      PatternType int8 1+ = 3
      Principal string
      Host string
      Operation int8
      PermissionType int8

SaslAuthenticate 36 versions 0-2 flexible 2+
request
  AuthBytes bytes
response
  ErrorCode int16
  ErrorMessage string?
  AuthBytes bytes
  SessionLifetimeMs int64 1+ ignorable

CreateDelegationToken 38 versions 0-3 flexible 2+
request
  OwnerPrincipalType string? 3+
  OwnerPrincipalName string? 3+
  Renewers []CreatableRenewers
    PrincipalType string
    PrincipalName string
  MaxLifetimeMs int64
response
  ErrorCode int16
  PrincipalType string
  PrincipalName string
  TokenRequesterPrincipalType string 3+
  TokenRequesterPrincipalName string 3+
  IssueTimestampMs int64
  ExpiryTimestampMs int64
  MaxTimestampMs int64
  TokenId string
  Hmac bytes
  ThrottleTimeMs int32

RenewDelegationToken 39 versions 0-2 flexible 2+
request
  Hmac bytes
  RenewPeriodMs int64
response
  ErrorCode int16
  ExpiryTimestampMs int64
  ThrottleTimeMs int32

ExpireDelegationToken 40 versions 0-2 flexible 2+
request
  Hmac bytes
  ExpiryTimePeriodMs int64
response
  ErrorCode int16
  ExpiryTimestampMs int64
  ThrottleTimeMs int32

DescribeDelegationToken 41 versions 0-3 flexible 2+
request
  Owners []DescribeDelegationTokenOwner?
    PrincipalType string
    PrincipalName string
response
  ErrorCode int16
  Tokens []DescribedDelegationToken
    PrincipalType string
    PrincipalName string
    TokenRequesterPrincipalType string 3+
    TokenRequesterPrincipalName string 3+
    IssueTimestamp int64
    ExpiryTimestamp int64
    MaxTimestamp int64
    TokenId string
    Hmac bytes
    Renewers []DescribedDelegationTokenRenewer
      PrincipalType string
      PrincipalName string
  ThrottleTimeMs int32

DescribeClientQuotas 48 versions 0-1 flexible 1+
request
  Components []ComponentData
    EntityType string
    MatchType int8
    Match string?
  Strict bool
response
  ThrottleTimeMs int32
  ErrorCode int16
  ErrorMessage string?
  Entries []EntryData?
    Entity []EntityData
      EntityType string
      EntityName string?
    Values []ValueData
      Key string
      Value float64

AlterClientQuotas 49 versions 0-1 flexible 1+
request
  Entries []EntryData
    Entity []EntityData
      EntityType string
      EntityName string?
    Ops []OpData
      Key string
      Value float64
      Remove bool
  ValidateOnly bool
response
  ThrottleTimeMs int32
  Entries []EntryData
    ErrorCode int16
    ErrorMessage string?
    Entity []EntityData
      EntityType string
      EntityName string?

DescribeUserScramCredentials 50 versions 0-0 flexible 0+
request
  Users []UserName?
    Name string
response
  ThrottleTimeMs int32
  ErrorCode int16
  ErrorMessage string?
  Results []DescribeUserScramCredentialsResult
    User string
    ErrorCode int16
    ErrorMessage string?
    CredentialInfos []CredentialInfo
      Mechanism int8
      Iterations int32

AlterUserScramCredentials 51 versions 0-0 flexible 0+
request
  Deletions []ScramCredentialDeletion
    Name string
    Mechanism int8
  Upsertions []ScramCredentialUpsertion
    Name string
    Mechanism int8
    Iterations int32
    Salt bytes
    SaltedPassword bytes
response
  ThrottleTimeMs int32
  Results []AlterUserScramCredentialsResult
    User string
    ErrorCode int16
    ErrorMessage string?
"""
