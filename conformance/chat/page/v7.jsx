import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from 'ai-v7';
import { useChat } from 'react-v4';
import { WorkflowChatTransport as Earlier } from '@workflow/ai';
import { WorkflowChatTransport } from '@ai-sdk/workflow/client';
import { open } from './chat.jsx';

const transports = { workflow: WorkflowChatTransport, earlier: Earlier, default: DefaultChatTransport };
open({ useChat, transports, lastAssistantMessageIsCompleteWithApprovalResponses, api: '/v7/chat' });
