import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from 'ai';
import { useChat } from 'react-v3';
import { WorkflowChatTransport } from '@workflow/ai';
import { WorkflowChatTransport as Next } from '@ai-sdk/workflow/client';
import { open } from './chat.jsx';

const transports = { workflow: WorkflowChatTransport, next: Next, default: DefaultChatTransport };
open({ useChat, transports, lastAssistantMessageIsCompleteWithApprovalResponses, api: '/v6/chat' });
