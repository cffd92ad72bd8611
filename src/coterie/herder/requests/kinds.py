"""All kinds of requests, and of responses."""

from typing import TypeAlias

from coterie.config.infos import ConfigInfos
from coterie.herder.requests.orders import RestartConnectorTask, SetGroupLoggerLevel, WorkerOrder
from coterie.herder.requests.questions import PluginConfigKeys, PluginList, Question
from coterie.herder.requests.reads import (
    ConnectorDescriptions,
    ConnectorInfo,
    ConnectorNames,
    ConnectorOffsets,
    ConnectorStatus,
    Read,
    TaskConfigs,
    TaskStatus,
)
from coterie.herder.requests.refusals import RequestRefused, SuccessWithoutContent
from coterie.herder.requests.signatures import ContentSignature, SignatureCheckResult, SignatureRequest
from coterie.herder.requests.topics import ActiveTopics, TopicRequest
from coterie.herder.requests.views import DescribeWorker, DescribeWorkerGroup, GroupView, WorkerView
from coterie.herder.requests.writes import DeletedConnector, Write, WrittenConnector

Request: TypeAlias = (
    Read
    | Write
    | Question
    | DescribeWorker
    | DescribeWorkerGroup
    | WorkerOrder
    | RestartConnectorTask
    | SetGroupLoggerLevel
    | SignatureRequest
    | TopicRequest
)

Answer: TypeAlias = (
    ConnectorInfo
    | WrittenConnector
    | DeletedConnector
    | ConnectorStatus
    | ConnectorNames
    | ConnectorDescriptions
    | TaskConfigs
    | TaskStatus
    | ConnectorOffsets
    | ActiveTopics
    | WorkerView
    | GroupView
    | PluginList
    | PluginConfigKeys
    | ConfigInfos
    | ContentSignature
    | SignatureCheckResult
    | SuccessWithoutContent
    | RequestRefused
)
"""The response to a request."""
